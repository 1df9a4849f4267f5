//! Error codes: name, class and the [`Error`] that they become (F2.5).

use std::fmt;

use super::proto::ErrorResponse;
use crate::error::{Error, Kind};

/// What the line with the way out begins with, in a node's error message.
const HINT: &str = "hint: ";

/// What a caller may do about a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Ask again after a pause.
    Retriable,
    /// Refresh the table's metadata, then ask again.
    RefreshMetadata,
    /// Refresh the coordinator's address, then ask again.
    RefreshCoordinator,
    /// What the request was built by is out of date.
    Stale,
    /// Final.
    Final,
}

/// A Fluss error code. Unknown numbers are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(pub i32);

macro_rules! codes {
    ($($constant:ident = $number:literal, $name:ident;)*) => {
        #[allow(missing_docs, reason = "the names are the protocol's")]
        impl Code {
            $(pub const $constant: Self = Self($number);)*

            /// The protocol's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($number => stringify!($name),)*
                    _ => "UnknownCode",
                }
            }
        }
    };
}

codes! {
    UNKNOWN_SERVER_ERROR = -1, UnknownServerError;
    NONE = 0, None;
    NETWORK_EXCEPTION = 1, NetworkException;
    UNSUPPORTED_VERSION = 2, UnsupportedVersion;
    CORRUPT_MESSAGE = 3, CorruptMessage;
    DATABASE_NOT_EXIST = 4, DatabaseNotExist;
    DATABASE_NOT_EMPTY = 5, DatabaseNotEmpty;
    DATABASE_ALREADY_EXIST = 6, DatabaseAlreadyExist;
    TABLE_NOT_EXIST = 7, TableNotExist;
    TABLE_ALREADY_EXIST = 8, TableAlreadyExist;
    SCHEMA_NOT_EXIST = 9, SchemaNotExist;
    LOG_STORAGE = 10, LogStorage;
    KV_STORAGE = 11, KvStorage;
    NOT_LEADER_OR_FOLLOWER = 12, NotLeaderOrFollower;
    RECORD_TOO_LARGE = 13, RecordTooLarge;
    CORRUPT_RECORD = 14, CorruptRecord;
    INVALID_TABLE = 15, InvalidTable;
    INVALID_DATABASE = 16, InvalidDatabase;
    INVALID_REPLICATION_FACTOR = 17, InvalidReplicationFactor;
    INVALID_REQUIRED_ACKS = 18, InvalidRequiredAcks;
    LOG_OFFSET_OUT_OF_RANGE = 19, LogOffsetOutOfRange;
    NON_PRIMARY_KEY_TABLE = 20, NonPrimaryKeyTable;
    UNKNOWN_TABLE_OR_BUCKET = 21, UnknownTableOrBucket;
    INVALID_UPDATE_VERSION = 22, InvalidUpdateVersion;
    INVALID_COORDINATOR = 23, InvalidCoordinator;
    FENCED_LEADER_EPOCH = 24, FencedLeaderEpoch;
    REQUEST_TIME_OUT = 25, RequestTimeOut;
    STORAGE = 26, Storage;
    OPERATION_NOT_ATTEMPTED = 27, OperationNotAttempted;
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 28, NotEnoughReplicasAfterAppend;
    NOT_ENOUGH_REPLICAS = 29, NotEnoughReplicas;
    SECURITY_TOKEN = 30, SecurityToken;
    OUT_OF_ORDER_SEQUENCE = 31, OutOfOrderSequence;
    DUPLICATE_SEQUENCE = 32, DuplicateSequence;
    UNKNOWN_WRITER_ID = 33, UnknownWriterId;
    INVALID_COLUMN_PROJECTION = 34, InvalidColumnProjection;
    INVALID_TARGET_COLUMN = 35, InvalidTargetColumn;
    PARTITION_NOT_EXISTS = 36, PartitionNotExists;
    TABLE_NOT_PARTITIONED = 37, TableNotPartitioned;
    INVALID_TIMESTAMP = 38, InvalidTimestamp;
    INVALID_CONFIG = 39, InvalidConfig;
    LAKE_STORAGE_NOT_CONFIGURED = 40, LakeStorageNotConfigured;
    KV_SNAPSHOT_NOT_EXIST = 41, KvSnapshotNotExist;
    PARTITION_ALREADY_EXISTS = 42, PartitionAlreadyExists;
    PARTITION_SPEC_INVALID = 43, PartitionSpecInvalid;
    LEADER_NOT_AVAILABLE = 44, LeaderNotAvailable;
    PARTITION_MAX_NUM = 45, PartitionMaxNum;
    AUTHENTICATE = 46, Authenticate;
    SECURITY_DISABLED = 47, SecurityDisabled;
    AUTHORIZATION = 48, Authorization;
    TOO_MANY_BUCKETS = 49, TooManyBuckets;
    FENCED_TIERING_EPOCH = 50, FencedTieringEpoch;
    RETRIABLE_AUTHENTICATE = 51, RetriableAuthenticate;
    INVALID_SERVER_RACK_INFO = 52, InvalidServerRackInfo;
    LAKE_SNAPSHOT_NOT_EXIST = 53, LakeSnapshotNotExist;
    LAKE_TABLE_ALREADY_EXIST = 54, LakeTableAlreadyExist;
    INELIGIBLE_REPLICA = 55, IneligibleReplica;
    INVALID_ALTER_TABLE = 56, InvalidAlterTable;
    DELETION_DISABLED = 57, DeletionDisabled;
    SERVER_NOT_EXIST = 58, ServerNotExist;
    SERVER_TAG_ALREADY_EXIST = 59, ServerTagAlreadyExist;
    SERVER_TAG_NOT_EXIST = 60, ServerTagNotExist;
    REBALANCE_FAILURE = 61, RebalanceFailure;
    NO_REBALANCE_IN_PROGRESS = 62, NoRebalanceInProgress;
    INVALID_PRODUCER_ID = 63, InvalidProducerId;
    CONFIG_EXCEPTION = 64, ConfigException;
    NOT_COORDINATOR_LEADER = 65, NotCoordinatorLeader;
    SCANNER_EXPIRED = 66, ScannerExpired;
    UNKNOWN_SCANNER_ID = 67, UnknownScannerId;
    INVALID_SCAN_REQUEST = 68, InvalidScanRequest;
    TOO_MANY_SCANNERS = 69, TooManyScanners;
    DISK_WRITE_LOCKED = 70, DiskWriteLocked;
    INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY = 71, InsufficientKvLeaderReplicaCapacity;
    STORAGE_BACKPRESSURE = 72, StorageBackpressure;
    HISTORICAL_PARTITION_THROTTLED = 73, HistoricalPartitionThrottled;
    INVALID_BUCKET_ROUTING = 74, InvalidBucketRouting;
}

impl Code {
    /// What a caller may do about it.
    #[must_use]
    pub const fn class(self) -> Class {
        match self.0 {
            3 | 9 | 10 | 11 | 14 | 25 | 26 | 28 | 29 | 51 | 69 | 70 | 72 | 73 => Class::Retriable,
            1 | 12 | 21 | 24 | 44 => Class::RefreshMetadata,
            65 => Class::RefreshCoordinator,
            23 | 41 | 50 | 74 => Class::Stale,
            _ => Class::Final,
        }
    }

    /// What kind of error it is for the flow.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match (self.class(), self.0) {
            // -1 is what a starting coordinator says, and what servers say about anything unforeseen.
            (Class::Retriable | Class::RefreshMetadata | Class::RefreshCoordinator, _) | (_, -1) => Kind::Unavailable,
            (Class::Stale, _) => Kind::Stale,
            // A scan that is lost: again from its beginning (F5.7).
            (_, 66..=68) => Kind::Unavailable,
            (_, 2) => Kind::Unsupported,
            (_, 19) => Kind::Data,
            _ => Kind::Invalid,
        }
    }

    /// The error that says `message`, with the kind that the code calls for.
    #[must_use]
    pub fn error(self, message: impl fmt::Display) -> Error {
        Error::new(self.kind(), format!("{message} (error {} {})", self.0, self.name())).with_code(self.0)
    }

    /// The error that a server answers with: as [`Self::error`], but the text leaves out the code, which travels beside it.
    #[must_use]
    pub fn answer(self, message: impl fmt::Display) -> Error {
        Error::new(self.kind(), message.to_string()).with_code(self.0)
    }

    /// The error for a server's `error_code` and `error_message` pair; `None` when the pair tells of success (absent or 0).
    ///
    /// Of a long message (servers send stack traces) only the first line is kept, and the way out where a node says one ([`Self::text`]).
    #[must_use]
    pub fn refusal(code: Option<i32>, message: Option<&str>) -> Option<Error> {
        let code = Self(code.filter(|code| *code != 0)?);
        let mut lines = message.unwrap_or_default().lines();
        let line = lines.next().map_or("", str::trim);
        let error = if line.is_empty() { code.error("server refused") } else { code.error(line) };
        Some(match lines.next().and_then(|line| line.strip_prefix(HINT)) {
            Some(hint) => error.with_hint(hint),
            None => error,
        })
    }

    /// What a server says of an error: all its levels, and in a line of its own the way out, if one is known.
    #[must_use]
    pub fn text(error: &Error) -> String {
        error.hint().map_or_else(|| error.chain(), |hint| format!("{}\n{HINT}{hint}", error.chain()))
    }

    /// The code that a server answers an error with.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error.code() {
            Some(code) if code != 0 => Self(code),
            _ if error.kind() == Kind::Unsupported => Self::UNSUPPORTED_VERSION,
            _ => Self::UNKNOWN_SERVER_ERROR,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.name())
    }
}

impl From<&Error> for ErrorResponse {
    fn from(error: &Error) -> Self {
        Self { error_code: Code::of(error).0, error_message: Some(Code::text(error)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_errors_of_the_right_kind() {
        for (code, kind) in [
            (-1, Kind::Unavailable),
            (1, Kind::Unavailable),
            (2, Kind::Unsupported),
            (7, Kind::Invalid),
            (12, Kind::Unavailable),
            (19, Kind::Data),
            (50, Kind::Stale),
            (65, Kind::Unavailable),
            (74, Kind::Stale),
            (4711, Kind::Invalid),
        ] {
            let error = Code::refusal(Some(code), Some("first line\nat java.lang.Thread")).unwrap();
            assert_eq!((error.kind(), error.code()), (kind, Some(code)));
            assert!(error.to_string().starts_with("first line (error"), "{error}");
        }
        assert!(Code::refusal(None, Some("x")).is_none());
        assert!(Code::refusal(Some(0), None).is_none());
    }

    #[test]
    fn an_error_without_code_is_answered_as_minus_one() {
        assert_eq!(ErrorResponse::from(&Error::internal("x")).error_code, -1);
        assert_eq!(ErrorResponse::from(&Code::TABLE_NOT_EXIST.error("x")).error_code, 7);
    }

    #[test]
    fn a_way_out_reaches_the_client_apart_from_what_went_wrong() {
        let answer = ErrorResponse::from(&Error::invalid("denied").with_hint("ask for the right").context("create"));
        let error = Code::refusal(Some(answer.error_code), answer.error_message.as_deref()).unwrap();
        assert_eq!(
            (error.chain().as_str(), error.hint()),
            ("create: denied (error -1 UnknownServerError)", Some("ask for the right"))
        );
        assert_eq!(Code::refusal(Some(7), Some("gone")).unwrap().hint(), None);
    }
}
