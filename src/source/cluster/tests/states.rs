//! State scans against a server that answers by script.

use super::*;
use crate::source::{StateRequest, is_state_lost};

const GOLDEN: &[u8] = include_bytes!("../../../../fixtures/vectors/value-record-batch.bin");

/// The table of the golden values: `id` INT, `name` STRING, `amount` DECIMAL(10, 2).
fn table() -> Arc<TableInfo> {
    use crate::model::{DataType, Field, TypeKind};
    let field = |id, name: &str, kind| Field { id, name: name.into(), data_type: DataType::nullable(kind), comment: None };
    let fields = vec![
        field(0, "id", TypeKind::Int),
        field(1, "name", TypeKind::String),
        field(2, "amount", TypeKind::Decimal { precision: 10, scale: 2 }),
    ];
    let schema = Schema { id: SchemaId(1), fields, primary_key: vec!["id".into()], highest_field_id: 2 };
    Arc::new(TableInfo { schema: Arc::new(schema), ..TableInfo::for_tests("demo.t", 2) })
}

fn wanted() -> StateRequest {
    StateRequest { table: table(), bucket: bucket(1), layout: LAYOUT, bytes_max: 1000 }
}

fn page(more: bool) -> ScanKvResponse {
    ScanKvResponse {
        scanner_id: Some(Bytes::from_static(b"s1")),
        has_more_results: Some(more),
        records: Some(Bytes::from_static(GOLDEN)),
        ..Default::default()
    }
}

fn no(code: Code) -> ScanKvResponse {
    ScanKvResponse { error_code: Some(code.0), error_message: Some("no".into()), ..Default::default() }
}

/// A source whose server answers the calls as listed, and what it was asked.
async fn scripted(answers: Vec<Option<ScanKvResponse>>) -> (ClusterSource, FakeServer, Arc<Mutex<Vec<ScanKvRequest>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (kept, answers) = (Arc::clone(&asked), Mutex::new(answers));
    let (source, server) = source(move |_, body| {
        let request = read::<ScanKvRequest>(body);
        let closes = request.close_scanner == Some(true);
        kept.lock().unwrap().push(request);
        if closes {
            return ScanKvResponse::default().into();
        }
        match answers.lock().unwrap().remove(0) {
            Some(answer) => answer.into(),
            None => Reply::HangUp,
        }
    })
    .await;
    (source, server, asked)
}

fn opened(more: bool) -> ScanKvResponse {
    ScanKvResponse { log_offset: Some(42), ..page(more) }
}

#[tokio::test]
async fn a_state_is_read_call_by_call_to_its_end_and_needs_no_close_then() {
    let busy = no(Code::TOO_MANY_SCANNERS);
    let moved = no(Code::NOT_LEADER_OR_FOLLOWER);
    let answers = vec![Some(busy), Some(moved), Some(opened(true)), Some(page(true)), Some(page(false))];
    let (source, _server, asked) = scripted(answers).await;
    assert!(source.serves_states().await.unwrap());
    let mut scan = source.open_state(wanted()).await.unwrap();
    assert_eq!(scan.log_offset(), 42);
    let mut rows = 0;
    while let Some(slice) = scan.next().await.unwrap() {
        for batch in slice.decode().unwrap() {
            assert_eq!((batch.base_offset, batch.commit_timestamp_ms, batch.schema_id), (-1, -1, SchemaId(1)));
            assert_eq!(batch.changes, Some(vec![crate::model::ChangeKind::Insert; 2]));
            rows += batch.rows.num_rows();
        }
    }
    assert!(scan.is_done());
    assert_eq!(rows, 6);
    drop(scan);
    tokio::task::yield_now().await;
    let asked = asked.lock().unwrap();
    let calls: Vec<_> = asked.iter().map(|call| (call.bucket_scan_req.is_some(), call.call_seq_id, call.close_scanner)).collect();
    let open = (true, Some(0), None);
    assert_eq!(calls, [open, open, open, (false, Some(1), None), (false, Some(2), None)]);
    let first = asked[0].bucket_scan_req.as_ref().unwrap();
    assert_eq!((first.partition_id, first.bucket_id, first.routing_bucket_count, first.limit), (Some(3), 1, Some(2), None));
    assert!(asked[3].scanner_id.as_deref() == Some(b"s1") && asked[3].batch_size_bytes == Some(1000));
}

#[tokio::test]
async fn an_empty_bucket_has_an_offset_and_no_rows() {
    let empty = ScanKvResponse { has_more_results: Some(false), log_offset: Some(7), ..Default::default() };
    let (source, _server, _) = scripted(vec![Some(empty)]).await;
    let mut scan = source.open_state(wanted()).await.unwrap();
    assert_eq!(scan.log_offset(), 7);
    assert!(scan.next().await.unwrap().unwrap().decode().unwrap().is_empty());
    assert!(scan.next().await.unwrap().is_none());
}

/// Never sent again: the sequence has gone on, whether the answer was lost or not.
#[tokio::test]
async fn a_scan_whose_answer_is_lost_or_refused_is_lost_and_never_asked_again() {
    let refusals = [66, 67, 68, 12].map(|code| Some(no(Code(code))));
    for answer in refusals.into_iter().chain([None]) {
        let (source, _server, asked) = scripted(vec![Some(opened(true)), answer.clone()]).await;
        let mut scan = source.open_state(wanted()).await.unwrap();
        scan.next().await.unwrap().unwrap();
        let error = scan.next().await.unwrap_err();
        assert!(is_state_lost(&error) && error.kind() == Kind::Unavailable, "{}", error.chain());
        assert!(error.to_string().contains("`demo.t`, table 1 partition 3 bucket 1"), "{error}");
        assert!(is_state_lost(&scan.next().await.unwrap_err()));
        assert_eq!(asked.lock().unwrap().iter().filter(|call| call.close_scanner.is_none()).count(), 2);
    }
}

#[tokio::test]
async fn a_scan_that_is_dropped_early_is_closed_at_the_server() {
    let (source, _server, asked) = scripted(vec![Some(opened(true))]).await;
    drop(source.open_state(wanted()).await.unwrap());
    while asked.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    let close = asked.lock().unwrap()[1].clone();
    assert_eq!((close.scanner_id.as_deref(), close.close_scanner, close.call_seq_id), (Some(&b"s1"[..]), Some(true), None));
}

#[tokio::test]
async fn what_can_not_be_an_answer_is_a_data_fault_and_what_is_gone_is_stale() {
    let silent = ScanKvResponse { has_more_results: None, ..opened(true) };
    let nameless = ScanKvResponse { scanner_id: None, ..opened(true) };
    let nowhere = ScanKvResponse { log_offset: None, ..opened(true) };
    for (answer, kind) in [
        (silent, Kind::Data),
        (nameless, Kind::Data),
        (nowhere, Kind::Data),
        (no(Code::INVALID_BUCKET_ROUTING), Kind::Stale),
        (no(Code::PARTITION_NOT_EXISTS), Kind::Stale),
        (no(Code::NON_PRIMARY_KEY_TABLE), Kind::Invalid),
    ] {
        let (source, _server, _) = scripted(vec![Some(answer)]).await;
        let error = source.open_state(wanted()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.chain());
    }
    let broken = ScanKvResponse { records: Some(Bytes::from_static(b"broken")), ..opened(false) };
    let (source, _server, _) = scripted(vec![Some(broken)]).await;
    let error = source.open_state(wanted()).await.unwrap().next().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Data);
}
