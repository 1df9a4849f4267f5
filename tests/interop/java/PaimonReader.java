import com.google.gson.*;
import java.time.Duration;
import java.time.LocalDateTime;
import java.util.*;
import org.apache.paimon.Snapshot;
import org.apache.paimon.append.AppendCompactTask;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.data.*;
import org.apache.paimon.data.serializer.InternalRowSerializer;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.fs.FileIO;
import org.apache.paimon.fs.Path;
import org.apache.paimon.fs.local.LocalFileIO;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.manifest.ManifestEntry;
import org.apache.paimon.operation.BaseAppendFileStoreWrite;
import org.apache.paimon.operation.LocalOrphanFilesClean;
import org.apache.paimon.options.ExpireConfig;
import org.apache.paimon.options.Options;
import org.apache.paimon.predicate.Predicate;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.reader.RecordReaderIterator;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.schema.SchemaChange;
import org.apache.paimon.schema.SchemaManager;
import org.apache.paimon.table.BucketMode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.FileStoreTableFactory;
import org.apache.paimon.table.sink.*;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.types.*;
import org.apache.paimon.utils.InternalRowPartitionComputer;

/** Java Paimon as a server of JSON lines. Each request names {@code cmd} and {@code table}, a table folder, local or, with {@code store} (how it is reached), on S3; it is opened afresh, with dynamic {@code options}. */
public final class PaimonReader {
    public static void main(String[] args) throws Exception {
        org.apache.log4j.Logger.getRootLogger().setLevel(org.apache.log4j.Level.OFF);
        Lines.serve(PaimonReader::answer);
    }

    private static Object answer(JsonObject q) throws Exception {
        Path path = new Path(q.get("table").getAsString());
        if (q.get("cmd").getAsString().equals("create")) return create(path, q);
        FileStoreTable table = FileStoreTableFactory.create(q.has("store") ? FileIO.get(path, CatalogContext.create(Options.fromMap(Lines.pairs(q, "store")))) : LocalFileIO.create(), path);
        if (q.has("options")) table = table.copy(Lines.pairs(q, "options"));
        switch (q.get("cmd").getAsString()) {
            case "schema": return map("columns", columns(table.rowType()), "options", table.schema().options(), "partitions", table.partitionKeys(), "schema-id", table.schema().id());
            case "snapshot": {
                Snapshot s = table.snapshotManager().latestSnapshot();
                return s == null ? null : JsonParser.parseString(s.toJson());
            }
            case "files": return files(table);
            case "manifests": return table.store().manifestListFactory().create().readDataManifests(table.snapshotManager().latestSnapshot()).size();
            case "read": return read(table, q);
            case "filters": {
                List<Object> all = new ArrayList<>();
                for (JsonElement e : q.getAsJsonArray("filters")) all.add(filter(table, q, e.getAsJsonArray()));
                return all;
            }
            case "append": return append(table, q);
            case "stream": return stream(table, q);
            case "compact": return compact(table, q);
            case "set": return new SchemaManager(LocalFileIO.create(), path).commitChanges(SchemaChange.setOption(Lines.text(q, "key", null), Lines.text(q, "value", null))).id();
            case "orphans": return new LocalOrphanFilesClean(table, System.currentTimeMillis() + 3600_000, false).clean().getDeletedFilesPath().size();
            case "roll-back": table.rollbackTo(q.get("snapshot").getAsLong()); return true;
            case "expire": // all but the newest, as far as consumers let it
                return table.newExpireSnapshots().config(ExpireConfig.builder().snapshotRetainMin(1).snapshotRetainMax(1).snapshotTimeRetain(Duration.ZERO).build()).expire();
            default: throw new IllegalArgumentException("no command " + q);
        }
    }

    private static Map<String, Object> map(Object... kv) {
        Map<String, Object> m = new LinkedHashMap<>();
        for (int i = 0; i < kv.length; i += 2) m.put((String) kv[i], kv[i + 1]);
        return m;
    }

    private static List<List<String>> columns(RowType type) {
        List<List<String>> all = new ArrayList<>();
        type.getFields().forEach(f -> all.add(List.of(f.name(), f.type().asSQLString())));
        return all;
    }

    private static Object create(Path path, JsonObject q) throws Exception {
        Schema.Builder schema = Schema.newBuilder().partitionKeys(Lines.texts(q, "partitions")).primaryKey(Lines.texts(q, "keys")).options(Lines.pairs(q, "options"));
        for (JsonElement e : q.getAsJsonArray("columns"))
            schema.column(e.getAsJsonArray().get(0).getAsString(), DataTypeJsonParser.parseAtomicTypeSQLString(e.getAsJsonArray().get(1).getAsString()));
        return new SchemaManager(LocalFileIO.create(), path).createTable(schema.build()).id();
    }

    /** Writes and commits rows as Java's batch writer does, with their {@code kinds} (+I, -U, …); {@code overwrite} names the partition whose rows they replace. */
    private static Object append(FileStoreTable table, JsonObject q) throws Exception {
        BatchWriteBuilder builder = table.newBatchWriteBuilder();
        if (q.has("overwrite")) builder.withOverwrite(Lines.pairs(q, "overwrite"));
        try (IOManager io = IOManager.create(System.getProperty("java.io.tmpdir"));
                BatchTableWrite write = (BatchTableWrite) builder.newWrite().withIOManager(io);
                BatchTableCommit commit = builder.newCommit()) {
            JsonArray rows = q.getAsJsonArray("rows");
            for (int i = 0; i < rows.size(); i++) {
                GenericRow row = row(table.rowType(), rows.get(i).getAsJsonArray());
                if (q.has("kinds")) row.setRowKind(RowKind.fromShortString(q.getAsJsonArray("kinds").get(i).getAsString()));
                write.write(row);
            }
            commit.commit(write.prepareCommit());
        }
        return table.snapshotManager().latestSnapshotId();
    }

    /** The same by a streaming writer: one commit per list in {@code batches}, with identifiers from 1 on. */
    private static Object stream(FileStoreTable table, JsonObject q) throws Exception {
        StreamWriteBuilder builder = table.newStreamWriteBuilder();
        try (IOManager io = IOManager.create(System.getProperty("java.io.tmpdir"));
                StreamTableWrite write = (StreamTableWrite) builder.newWrite().withIOManager(io);
                StreamTableCommit commit = builder.newCommit()) {
            long id = 0;
            for (JsonElement batch : q.getAsJsonArray("batches")) {
                for (JsonElement e : batch.getAsJsonArray()) write.write(row(table.rowType(), e.getAsJsonArray()));
                commit.commit(++id, write.prepareCommit(true, id));
            }
        }
        return table.snapshotManager().latestSnapshotId();
    }

    /** Full compaction of one bucket, or of all files of a table without buckets; the newest snapshot. */
    private static Object compact(FileStoreTable table, JsonObject q) throws Exception {
        table = table.copy(Map.of("write-only", "false"));
        BinaryRow partition = partition(table, Lines.pairs(q, "partition"));
        String user = "compactor";
        try (IOManager io = IOManager.create(System.getProperty("java.io.tmpdir"));
                TableWriteImpl<?> write = table.newWrite(user).withIOManager(io);
                TableCommitImpl commit = table.newCommit(user)) {
            List<CommitMessage> messages = new ArrayList<>();
            if (table.bucketMode() == BucketMode.BUCKET_UNAWARE) {
                List<DataFileMeta> files = new ArrayList<>();
                for (ManifestEntry e : table.store().newScan().plan().files()) if (e.partition().equals(partition)) files.add(e.file());
                messages.add(new AppendCompactTask(partition, files).doCompact(table, (BaseAppendFileStoreWrite) write.getWrite()));
            } else {
                write.compact(partition, q.get("bucket").getAsInt(), true);
                messages.addAll(write.prepareCommit(true, 1));
            }
            commit.commit(1, messages);
        }
        return table.snapshotManager().latestSnapshotId();
    }

    private static BinaryRow partition(FileStoreTable table, Map<String, String> spec) {
        RowType type = table.schema().logicalPartitionType();
        GenericRow row = InternalRowPartitionComputer.convertSpecToInternalRow(spec, type, table.coreOptions().partitionDefaultName());
        return new InternalRowSerializer(type).toBinaryRow(row).copy();
    }

    private static GenericRow row(RowType type, JsonArray values) {
        GenericRow row = new GenericRow(type.getFieldCount());
        for (int i = 0; i < type.getFieldCount(); i++) row.setField(i, inside(type.getTypeAt(i), values.get(i)));
        return row;
    }

    /** Every live file. */
    private static Object files(FileStoreTable table) {
        List<Object> all = new ArrayList<>();
        RowType partition = table.schema().logicalPartitionType();
        for (ManifestEntry e : table.store().newScan().plan().files()) {
            all.add(map("partition", values(e.partition(), partition), "bucket", e.bucket(), "total", e.totalBuckets(), "name", e.file().fileName(),
                    "path", table.store().pathFactory().createDataFilePathFactory(e.partition(), e.bucket()).toPath(e.file()).toUri().getPath(),
                    "rows", e.file().rowCount(), "schema", e.file().schemaId(), "level", e.file().level(), "deletes", e.file().deleteRowCount().orElse(-1L), "min-sequence", e.file().minSequenceNumber(), "max-sequence", e.file().maxSequenceNumber()));
        }
        return all;
    }

    /** Rows as lists of values, with `kinds` their row kind in front. `columns` projects, `where` [[column, op, value]…] filters exactly, `partition` {key: text} picks a partition. */
    private static Object read(FileStoreTable table, JsonObject q) throws Exception {
        ReadBuilder builder = table.newReadBuilder();
        List<String> columns = Lines.texts(q, "columns");
        if (!columns.isEmpty()) builder.withReadType(table.rowType().project(columns));
        if (q.has("partition")) builder.withPartitionFilter(Lines.pairs(q, "partition"));
        if (q.has("where")) builder.withFilter(predicate(table.rowType(), q.getAsJsonArray("where")));
        RowType type = builder.readType();
        List<Object> rows = new ArrayList<>();
        try (IOManager io = IOManager.create(System.getProperty("java.io.tmpdir"))) {
            for (Split split : builder.newScan().plan().splits()) {
                try (RecordReaderIterator<InternalRow> it = new RecordReaderIterator<>(builder.newRead().executeFilter().withIOManager(io).createReader(split))) {
                    while (it.hasNext()) {
                        InternalRow row = it.next();
                        List<Object> values = values(row, type);
                        if (q.has("kinds")) values.add(0, row.getRowKind().shortString());
                        rows.add(values);
                    }
                }
            }
        }
        return rows;
    }

    /** The values of the first column in the rows that a filter gives, or why it fails. */
    private static Object filter(FileStoreTable table, JsonObject q, JsonArray where) {
        JsonObject one = new JsonObject();
        JsonArray columns = new JsonArray(), all = new JsonArray();
        String id = q.get("id").getAsString(), other = where.get(0).getAsString();
        columns.add(id);
        if (!other.equals(id)) columns.add(other);
        all.add(where);
        one.add("columns", columns);
        one.add("where", all);
        try {
            List<Object> ids = new ArrayList<>();
            for (Object row : (List<?>) read(table, one)) ids.add(((List<?>) row).get(0));
            return ids;
        } catch (Throwable t) {
            return t.toString();
        }
    }

    private static Predicate predicate(RowType type, JsonArray where) {
        PredicateBuilder b = new PredicateBuilder(type);
        List<Predicate> all = new ArrayList<>();
        for (JsonElement e : where) {
            JsonArray w = e.getAsJsonArray();
            int i = type.getFieldIndex(w.get(0).getAsString());
            Object v = w.size() > 2 ? internal(type.getTypeAt(i), w.get(2)) : null;
            switch (w.get(1).getAsString()) {
                case "=": all.add(b.equal(i, v)); break;
                case "<": all.add(b.lessThan(i, v)); break;
                case "<=": all.add(b.lessOrEqual(i, v)); break;
                case ">": all.add(b.greaterThan(i, v)); break;
                case ">=": all.add(b.greaterOrEqual(i, v)); break;
                case "null": all.add(b.isNull(i)); break;
                case "not null": all.add(b.isNotNull(i)); break;
                default: throw new IllegalArgumentException("no operator in " + w);
            }
        }
        return PredicateBuilder.and(all);
    }

    private static Object internal(DataType type, JsonElement e) {
        switch (type.getTypeRoot()) {
            case ARRAY: {
                List<Object> all = new ArrayList<>();
                e.getAsJsonArray().forEach(v -> all.add(inside(((ArrayType) type).getElementType(), v)));
                return new GenericArray(all.toArray());
            }
            case MAP: {
                Map<Object, Object> m = new LinkedHashMap<>();
                for (JsonElement pair : e.getAsJsonArray()) m.put(inside(((MapType) type).getKeyType(), pair.getAsJsonArray().get(0)), inside(((MapType) type).getValueType(), pair.getAsJsonArray().get(1)));
                return new GenericMap(m);
            }
            case ROW: {
                JsonArray fields = new JsonArray();
                ((RowType) type).getFieldNames().forEach(name -> fields.add(e.getAsJsonObject().get(name)));
                return row((RowType) type, fields);
            }
            default:
        }
        Object v = Lines.plain(type.getTypeRoot().name(), e);
        switch (type.getTypeRoot()) {
            case CHAR: case VARCHAR: return BinaryString.fromString((String) v);
            case DECIMAL: return Decimal.fromBigDecimal((java.math.BigDecimal) v, ((DecimalType) type).getPrecision(), ((DecimalType) type).getScale());
            case TIMESTAMP_WITHOUT_TIME_ZONE: case TIMESTAMP_WITH_LOCAL_TIME_ZONE: return Timestamp.fromLocalDateTime((LocalDateTime) v);
            default: return v;
        }
    }

    private static Object inside(DataType type, JsonElement e) { return e.isJsonNull() ? null : internal(type, e); }

    private static List<Object> values(InternalRow row, RowType type) {
        List<Object> all = new ArrayList<>();
        for (int i = 0; i < type.getFieldCount(); i++) all.add(value(InternalRow.createFieldGetter(type.getTypeAt(i), i).getFieldOrNull(row), type.getTypeAt(i)));
        return all;
    }

    private static Object value(Object v, DataType type) {
        if (v == null) return null;
        switch (type.getTypeRoot()) {
            case DECIMAL: v = ((Decimal) v).toBigDecimal(); break;
            case TIMESTAMP_WITHOUT_TIME_ZONE: case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return Lines.show(type.getTypeRoot().name(), DataTypeChecks.getPrecision(type), ((Timestamp) v).toLocalDateTime());
            case ARRAY: return list((InternalArray) v, ((ArrayType) type).getElementType());
            case MAP: return pairs((InternalMap) v, ((MapType) type).getKeyType(), ((MapType) type).getValueType());
            case MULTISET: return pairs((InternalMap) v, ((MultisetType) type).getElementType(), DataTypes.INT());
            case ROW: {
                List<Object> fields = values((InternalRow) v, (RowType) type);
                Map<String, Object> m = new LinkedHashMap<>();
                for (int i = 0; i < fields.size(); i++) m.put(((RowType) type).getFieldNames().get(i), fields.get(i));
                return m;
            }
            default:
        }
        return Lines.show(type.getTypeRoot().name(), 0, v);
    }

    private static List<Object> list(InternalArray a, DataType element) {
        InternalArray.ElementGetter getter = InternalArray.createElementGetter(element);
        List<Object> all = new ArrayList<>();
        for (int i = 0; i < a.size(); i++) all.add(value(getter.getElementOrNull(a, i), element));
        return all;
    }

    private static List<Object> pairs(InternalMap m, DataType key, DataType val) {
        List<Object> k = list(m.keyArray(), key), v = list(m.valueArray(), val), all = new ArrayList<>();
        for (int i = 0; i < k.size(); i++) all.add(Arrays.asList(k.get(i), v.get(i)));
        all.sort(Comparator.comparing(Object::toString));
        return all;
    }
}
