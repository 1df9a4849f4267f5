//! `lakeward scan DB.TABLE`: rows of lake and log together, as JSON lines or CSV.

use arrow_array::RecordBatch;

use super::args::{Scan as Args, ScanFormat};
use super::output::Output;
use super::{End, connect};
use crate::audit::scan::{Format, Options, Printer, Scan};
use crate::config::Settings;
use crate::error::Error;
use crate::runtime::Runtime;

pub(super) async fn run(args: &Args, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let cluster = connect::cluster(&settings, &runtime).await?;
    let context = connect::audit(&cluster, &settings, &runtime, &args.table).await?;
    let only = connect::chosen(&context, &args.partition).await?;
    let columns = if args.count { Some(vec![]) } else { args.columns.clone() };
    let mut scan = Scan::open(&context, &Options { columns, only, snapshot: args.snapshot }).await?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    if args.count {
        let mut rows = 0_u64;
        while rows < left
            && let Some(batch) = scan.next_batch().await?
        {
            rows = rows.saturating_add(batch.num_rows() as u64);
        }
        return output.data(&rows.min(left).to_string());
    }
    let format = match args.format {
        ScanFormat::Json => Format::Json,
        ScanFormat::Csv => Format::Csv,
    };
    let printer = Printer::new(format, scan.fields().to_vec());
    if let Some(header) = printer.header() {
        output.data(&header)?;
    }
    while left > 0
        && let Some(batch) = scan.next_batch().await?
    {
        let batch = first(batch, left);
        left -= batch.num_rows() as u64;
        let printer = printer.clone();
        let text = runtime.encoders.run(move || printer.rows(&batch)).await.and_then(|text| text)?;
        let lines = text.strip_suffix('\n').ok_or_else(|| Error::internal("rows without lines"))?;
        output.data(lines)?;
    }
    Ok(())
}

fn first(batch: RecordBatch, rows: u64) -> RecordBatch {
    match usize::try_from(rows) {
        Ok(rows) if rows < batch.num_rows() => batch.slice(0, rows),
        _ => batch,
    }
}
