//! What can be typed behind `lakeward load`.

use std::path::PathBuf;

use crate::client::ddl::{TableParts, parse_column_type};
use crate::client::files::{BytesText, ChangeColumn, FileOptions, Format, Input};
use crate::config::server;
use crate::error::{Error, Result};
use crate::model::{DataType, TablePath};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Load {
    /// Any server of the Fluss cluster.
    #[arg(long, value_name = "HOST:PORT", value_parser = server)]
    pub(in crate::cli) server: Option<String>,
    /// The table.
    #[arg(value_name = "DB.TABLE")]
    pub(super) table: TablePath,
    /// Files to load, in this order; `-` is the standard input.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// What the files hold [default: by their names; JSON lines from the standard input].
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// CSV: what stands between fields.
    #[arg(long, value_name = "CHAR", default_value = ",", value_parser = delimiter)]
    delimiter: u8,
    /// CSV: the first line is a row; columns stand in the table's order.
    #[arg(long)]
    no_header: bool,
    /// CSV: what stands for NULL, when not quoted.
    #[arg(long, value_name = "TEXT", default_value = "")]
    null: String,
    /// How JSON and CSV write BYTES and BINARY.
    #[arg(long, value_enum, default_value_t)]
    bytes: BytesText,
    /// Leave out columns that the table does not have.
    #[arg(long)]
    ignore_unknown: bool,
    /// Leave out up to N bad rows, each named on stderr, before giving up.
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip_bad: usize,
    /// Rows in which this column is true (also `t`, `yes`, `y`, `1`) delete what has their key; it needs not be one of the table's.
    #[arg(long, value_name = "NAME", conflicts_with = "op_column")]
    delete_column: Option<String>,
    /// This column names what a row does: `c`, `r`, `u`, insert, update, upsert: upsert; `d`, delete: delete. `-U` rows are left out.
    #[arg(long, value_name = "NAME")]
    op_column: Option<String>,
    /// Start at this line (Parquet: row) of the first file: where an earlier load said to go on.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,
    /// Refuse rows of partitions that are not there, instead of making these.
    #[arg(long)]
    no_new_partitions: bool,
    /// Make the table, and its database, if it is not there.
    #[arg(long, requires = "shape")]
    pub(super) create: bool,
    #[command(flatten)]
    shape: Shape,
    /// Print the report as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// How the table is made.
#[derive(Debug, clap::Args)]
#[group(id = "shape", multiple = true)]
struct Shape {
    /// With --create: a file with CREATE TABLE.
    #[arg(long, value_name = "FILE", requires = "create", conflicts_with_all = ["column", "primary_key", "partition_by", "bucket_key", "buckets", "option"])]
    ddl: Option<PathBuf>,
    /// With --create: a column, such as `id:BIGINT NOT NULL`; once for each.
    #[arg(long, value_name = "NAME:TYPE", requires = "create", value_parser = column)]
    column: Vec<(String, DataType)>,
    /// With --create: primary key; without it the table is a log.
    #[arg(long, value_name = "NAME,…", requires = "column", value_delimiter = ',')]
    primary_key: Vec<String>,
    /// With --create: partition columns.
    #[arg(long, value_name = "NAME,…", requires = "column", value_delimiter = ',')]
    partition_by: Vec<String>,
    /// With --create: bucket key.
    #[arg(long, value_name = "NAME,…", requires = "column", value_delimiter = ',')]
    bucket_key: Vec<String>,
    /// With --create: bucket count [default: the cluster's].
    #[arg(long, value_name = "N", requires = "column", value_parser = clap::value_parser!(i32).range(1..))]
    buckets: Option<i32>,
    /// With --create: an option, such as `table.datalake.enabled=true`; once for each.
    #[arg(long, value_name = "KEY=VALUE", requires = "column", value_parser = pair)]
    option: Vec<(String, String)>,
}

/// Where the new table's shape comes from.
pub(super) enum Wanted {
    Ddl(PathBuf),
    Parts(TableParts),
}

impl Load {
    pub(super) fn wanted(&self) -> Wanted {
        match &self.shape.ddl {
            Some(file) => Wanted::Ddl(file.clone()),
            None => Wanted::Parts(TableParts {
                columns: self.shape.column.clone(),
                primary_key: self.shape.primary_key.clone(),
                partition_keys: self.shape.partition_by.clone(),
                bucket_keys: self.shape.bucket_key.clone(),
                buckets: self.shape.buckets,
                options: self.shape.option.clone(),
            }),
        }
    }

    /// The inputs, of which each tells its format.
    ///
    /// # Errors
    /// `Invalid` when a file is not there, its name tells no format, or the standard input is named twice; `Unsupported` for
    /// compressed files.
    pub(super) fn inputs(&self) -> Result<Vec<Input>> {
        let input = |path: &PathBuf| if path.as_os_str() == "-" { Input::Stdin } else { Input::File(path.clone()) };
        let inputs: Vec<Input> = self.files.iter().map(input).collect();
        if inputs.iter().filter(|input| **input == Input::Stdin).count() > 1 {
            return Err(Error::invalid("the standard input can be read once only"));
        }
        for input in &inputs {
            let Input::File(path) = input else { continue };
            std::fs::metadata(path)
                .map_err(|source| Error::invalid(format!("look at `{}`", path.display())).with_source(source))?;
            if self.format.is_none() {
                input.format()?;
            }
        }
        Ok(inputs)
    }

    pub(super) fn options(&self) -> FileOptions {
        FileOptions {
            format: self.format,
            bytes: self.bytes,
            delimiter: self.delimiter,
            header: !self.no_header,
            null: self.null.clone(),
            ignore_unknown: self.ignore_unknown,
            bad_rows_max: self.skip_bad,
            from_line: self.from_line,
            changes: match (&self.delete_column, &self.op_column) {
                (Some(name), _) => Some(ChangeColumn::Delete(name.clone())),
                (None, Some(name)) => Some(ChangeColumn::Op(name.clone())),
                (None, None) => None,
            },
        }
    }

    pub(super) fn new_partitions(&self) -> bool {
        !self.no_new_partitions
    }
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text {
        "\\t" | "tab" => Ok(b'\t'),
        _ => match text.as_bytes() {
            [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(*byte),
            _ => Err(format!("`{text}` is not one ASCII character; `\\t` is a tab")),
        },
    }
}

fn column(text: &str) -> Result<(String, DataType), String> {
    let (name, data_type) = text.split_once(':').ok_or_else(|| format!("`{text}` is not of the form NAME:TYPE"))?;
    let data_type = parse_column_type(data_type).map_err(|error| error.chain())?;
    Ok((name.trim().to_owned(), data_type))
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not of the form KEY=VALUE"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}
