//! What clients hold and leave behind, counted from inside: places, memory, requests that wait.

use std::time::Duration;

use super::*;
use crate::fluss::api::Request;

impl Stage {
    /// Connections, and bytes that requests and answers hold.
    fn counts(&self) -> (usize, usize, usize) {
        self.node.server.client_counts()
    }

    async fn until(&self, what: &str, mut is: impl FnMut((usize, usize, usize)) -> bool) {
        let wait = async {
            while !is(self.counts()) {
                self.runtime.clock.sleep(Duration::from_millis(5)).await;
            }
        };
        self.runtime.clock.timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|| panic!("{what}: {:?}", self.counts()));
    }
}

fn wire<R: Request>(id: i32, request: &R) -> Vec<u8> {
    let body = request.encode_to_vec();
    let mut frame = i32::try_from(8 + body.len()).unwrap().to_be_bytes().to_vec();
    frame.extend(R::KEY.number().to_be_bytes());
    frame.extend(0_i16.to_be_bytes());
    frame.extend(id.to_be_bytes());
    frame.extend(body);
    frame
}

#[tokio::test]
async fn polls_of_clients_that_have_gone_leave_nothing_behind() {
    let stage = Stage::new().await;
    assert_eq!(stage.counts(), (1, 0, 0));
    // Of a table that is not there: such a bucket may still come, so it waits.
    let bucket = PbFetchLogReqForBucket { max_fetch_bytes: 1 << 20, ..PbFetchLogReqForBucket::default() };
    let table = PbFetchLogReqForTable { table_id: 99, buckets_req: vec![bucket], ..PbFetchLogReqForTable::default() };
    let poll =
        FetchLogRequest { max_bytes: i32::MAX, tables_req: vec![table], max_wait_ms: Some(i32::MAX), ..FetchLogRequest::default() };
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(stage.node.address()).await.unwrap();
        for id in 0..900 {
            stream.write_all(&wire(id, &poll)).await.unwrap();
        }
        streams.push(stream);
    }
    stage.until("all are there", |(connections, ..)| connections == 4).await;
    stage.until("who waits holds nothing", |(_, _, answers)| answers == 0).await;
    drop(streams);
    stage.until("all are gone", |counts| counts == (1, 0, 0)).await;
    assert!(stage.client.call(&DatabaseExistsRequest { database_name: "demo".into() }).await.is_ok());
    stage.node.stop().await;
}

#[tokio::test]
async fn what_is_announced_holds_memory_until_it_came_or_is_given_up_and_the_slow_give_way_to_others() {
    let stage = Stage::with(|options| options.clients.stall = Duration::from_secs(3_600)).await;
    // Of 64 MiB, half is for requests: two such announcements take more than that.
    let announced = 20_i32 << 20;
    let mut slow = TcpStream::connect(stage.node.address()).await.unwrap();
    slow.write_all(&announced.to_be_bytes()).await.unwrap();
    stage.until("room is made", |(_, requests, _)| requests == 20 << 20).await;
    // Somebody else's is let in once the first has shown to be slow.
    let other = ListDatabasesRequest { include_summary: None };
    let mut large = wire(7, &other);
    let padding = usize::try_from(announced).unwrap() - large.len() + 4;
    // A field that nobody knows, of that length.
    let mut field = vec![0xfa, 0x7f];
    prost_length(&mut field, padding - 6);
    field.resize(padding, 0);
    large.extend(field);
    let length = i32::try_from(large.len() - 4).unwrap();
    large[..4].copy_from_slice(&length.to_be_bytes());
    let mut quick = TcpStream::connect(stage.node.address()).await.unwrap();
    quick.write_all(&large).await.unwrap();
    let length = quick.read_i32().await.unwrap();
    let mut answer = vec![0; usize::try_from(length).unwrap()];
    quick.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[..5], [0, 0, 0, 0, 7], "answered well");
    assert_eq!(slow.read(&mut [0; 8]).await.unwrap_or(0), 0, "the slow one was closed");
    stage.until("nothing is held any more", |(_, requests, answers)| (requests, answers) == (0, 0)).await;
    stage.node.stop().await;
}

fn prost_length(target: &mut Vec<u8>, mut length: usize) {
    // Four bytes, whatever it is.
    for _ in 0..3 {
        target.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    target.push(u8::try_from(length).unwrap());
}
