//! Api keys: number, name and the versions that this build speaks (F2.3); which message answers which.

use std::fmt;

use super::proto;

/// A request message: knows its key and what answers it.
pub trait Request: prost::Message + Send + Sync + 'static {
    /// Its key.
    const KEY: ApiKey;
    /// The message that answers it.
    type Response: prost::Message + Default + Send + 'static;
}

macro_rules! keys {
    ($($name:ident = $number:literal, $min:literal..=$max:literal, $request:ident => $response:ident;)*) => {
        /// The keys whose messages this build knows.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(i16)]
        #[allow(missing_docs, reason = "the names are the protocol's")]
        pub enum ApiKey {
            $($name = $number,)*
        }

        impl ApiKey {
            /// All keys, in order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The key with this number.
            #[must_use]
            pub const fn from_number(number: i16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its number on the wire.
            #[must_use]
            pub const fn number(self) -> i16 {
                match self {
                    $(Self::$name => $number,)*
                }
            }

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Lowest and highest version that this build speaks.
            #[must_use]
            pub const fn versions(self) -> (i16, i16) {
                match self {
                    $(Self::$name => ($min, $max),)*
                }
            }

            /// Reads a message of this key, a request or an answer.
            ///
            /// # Errors
            /// As [`proto::decode`].
            #[cfg(any(test, fuzzing))]
            pub(crate) fn read_message(self, is_request: bool, body: bytes::Bytes) -> crate::error::Result<()> {
                match self {
                    $(Self::$name if is_request => proto::decode::<proto::$request>(stringify!($request), body).map(drop),
                    Self::$name => proto::decode::<proto::$response>(stringify!($response), body).map(drop),)*
                }
            }
        }

        $(impl Request for proto::$request {
            const KEY: ApiKey = ApiKey::$name;
            type Response = proto::$response;
        })*
    };
}

keys! {
    ApiVersions = 1000, 0..=0, ApiVersionsRequest => ApiVersionsResponse;
    CreateDatabase = 1001, 0..=0, CreateDatabaseRequest => CreateDatabaseResponse;
    DropDatabase = 1002, 0..=0, DropDatabaseRequest => DropDatabaseResponse;
    ListDatabases = 1003, 0..=0, ListDatabasesRequest => ListDatabasesResponse;
    DatabaseExists = 1004, 0..=0, DatabaseExistsRequest => DatabaseExistsResponse;
    CreateTable = 1005, 0..=0, CreateTableRequest => CreateTableResponse;
    DropTable = 1006, 0..=0, DropTableRequest => DropTableResponse;
    GetTableInfo = 1007, 0..=0, GetTableInfoRequest => GetTableInfoResponse;
    ListTables = 1008, 0..=0, ListTablesRequest => ListTablesResponse;
    ListPartitionInfos = 1009, 0..=0, ListPartitionInfosRequest => ListPartitionInfosResponse;
    TableExists = 1010, 0..=0, TableExistsRequest => TableExistsResponse;
    GetTableSchema = 1011, 0..=0, GetTableSchemaRequest => GetTableSchemaResponse;
    GetMetadata = 1012, 0..=0, MetadataRequest => MetadataResponse;
    ProduceLog = 1014, 0..=1, ProduceLogRequest => ProduceLogResponse;
    FetchLog = 1015, 0..=0, FetchLogRequest => FetchLogResponse;
    PutKv = 1016, 0..=3, PutKvRequest => PutKvResponse;
    Lookup = 1017, 0..=1, LookupRequest => LookupResponse;
    ListOffsets = 1021, 0..=0, ListOffsetsRequest => ListOffsetsResponse;
    GetLatestKvSnapshots = 1023, 0..=0, GetLatestKvSnapshotsRequest => GetLatestKvSnapshotsResponse;
    GetKvSnapshotMetadata = 1024, 0..=1, GetKvSnapshotMetadataRequest => GetKvSnapshotMetadataResponse;
    GetFileSystemSecurityToken = 1025, 0..=0, GetFileSystemSecurityTokenRequest => GetFileSystemSecurityTokenResponse;
    InitWriter = 1026, 0..=0, InitWriterRequest => InitWriterResponse;
    CommitLakeTableSnapshot = 1030, 0..=0, CommitLakeTableSnapshotRequest => CommitLakeTableSnapshotResponse;
    GetLakeSnapshot = 1032, 0..=0, GetLakeSnapshotRequest => GetLakeSnapshotResponse;
    LimitScan = 1033, 0..=0, LimitScanRequest => LimitScanResponse;
    PrefixLookup = 1034, 0..=1, PrefixLookupRequest => PrefixLookupResponse;
    GetDatabaseInfo = 1035, 0..=0, GetDatabaseInfoRequest => GetDatabaseInfoResponse;
    CreatePartition = 1036, 0..=0, CreatePartitionRequest => CreatePartitionResponse;
    DropPartition = 1037, 0..=0, DropPartitionRequest => DropPartitionResponse;
    Authenticate = 1038, 0..=0, AuthenticateRequest => AuthenticateResponse;
    LakeTieringHeartbeat = 1042, 0..=0, LakeTieringHeartbeatRequest => LakeTieringHeartbeatResponse;
    AlterTable = 1044, 0..=1, AlterTableRequest => AlterTableResponse;
    DescribeClusterConfigs = 1045, 0..=0, DescribeClusterConfigsRequest => DescribeClusterConfigsResponse;
    PrepareLakeTableSnapshot = 1052, 0..=0, PrepareLakeTableSnapshotRequest => PrepareLakeTableSnapshotResponse;
    GetTableStats = 1059, 0..=0, GetTableStatsRequest => GetTableStatsResponse;
    AlterDatabase = 1060, 0..=0, AlterDatabaseRequest => AlterDatabaseResponse;
    ScanKv = 1061, 0..=0, ScanKvRequest => ScanKvResponse;
    ListRemoteLogManifests = 1063, 0..=0, ListRemoteLogManifestsRequest => ListRemoteLogManifestsResponse;
    ListKvSnapshots = 1064, 0..=0, ListKvSnapshotsRequest => ListKvSnapshotsResponse;
}

impl ApiKey {
    /// Largest answer of a server that is sound, given the largest that a client takes at all: rows may be that many; the handshake says
    /// little, and comes from whoever listens there.
    #[must_use]
    pub fn answer_bytes_max(self, most: usize) -> usize {
        let own = match self {
            Self::ApiVersions | Self::Authenticate => 1 << 20,
            Self::FetchLog | Self::Lookup | Self::PrefixLookup | Self::LimitScan | Self::ScanKv => most,
            _ => 64 << 20,
        };
        own.min(most)
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_keys_lead_to_each_other() {
        for key in ApiKey::ALL {
            assert_eq!(ApiKey::from_number(key.number()), Some(*key));
        }
        assert!(ApiKey::ALL.is_sorted_by_key(|key| key.number()));
        assert_eq!(ApiKey::from_number(1013), None);
    }
}
