import com.google.gson.*;
import java.time.Duration;
import java.time.ZoneOffset;
import java.util.*;
import java.util.concurrent.*;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.metadata.LakeSnapshot;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.Scan;
import org.apache.fluss.client.table.scanner.ScanRecord;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.*;
import org.apache.fluss.row.*;
import org.apache.fluss.types.*;

/**
 * The official Java client as a server of JSON lines. Each request names {@code cmd}, {@code at} (HOST:PORT) and mostly {@code table} (db.name).
 * What only client 1.0 has (bucket counts of partitions and their change) is called by reflection, so that 0.9.1 compiles too.
 */
public final class FlussClient {
    private final Map<String, Connection> connections = new HashMap<>();
    private final Map<String, Table> tables = new HashMap<>();
    private int turnedAway;

    public static void main(String[] args) throws Exception { Lines.serve(new FlussClient()::answer); }

    private Object answer(JsonObject q) throws Exception {
        String at = q.get("at").getAsString(), cmd = q.get("cmd").getAsString();
        if (cmd.equals("close")) {
            Connection gone = connections.remove(at);
            tables.keySet().removeIf(key -> key.startsWith(at + " "));
            if (gone != null) gone.close();
            return true;
        }
        Connection c = connections.get(at);
        if (c == null) {
            Configuration conf = new Configuration();
            conf.setString("bootstrap.servers", at);
            Lines.pairs(q, "client").forEach(conf::setString);
            connections.put(at, c = ConnectionFactory.createConnection(conf));
        }
        Admin admin = c.getAdmin();
        String db = Lines.text(q, "db", null), name = Lines.text(q, "table", null);
        TablePath path = name == null ? null : TablePath.of(name.split("\\.")[0], name.split("\\.")[1]);
        switch (cmd) {
            case "nodes": {
                List<String> nodes = new ArrayList<>();
                get(admin.getServerNodes()).forEach(n -> nodes.add(n.serverType().name()));
                return nodes;
            }
            case "create-database": get(admin.createDatabase(db, DatabaseDescriptor.EMPTY, true)); return true;
            case "drop-database": get(admin.dropDatabase(db, false, true)); return true;
            case "databases": return get(admin.listDatabases());
            case "tables": return get(admin.listTables(db));
            case "exists": return get(admin.tableExists(path));
            case "create": return create(admin, path, q);
            case "drop": get(admin.dropTable(path, false)); return true;
            case "info": return info(get(admin.getTableInfo(path)));
            case "set": return alter(admin, path, changes(Lines.pairs(q, "properties")));
            case "add-columns": return alter(admin, path, added(q.getAsJsonArray("columns")));
            case "bucket-count": return alter(admin, path, List.of(bucketCount(q.get("count").getAsInt())));
            case "alter": return outcome(admin, path, q);
            case "create-partition": get(admin.createPartition(path, new PartitionSpec(Lines.pairs(q, "spec")), false)); return true;
            case "drop-partition": get(admin.dropPartition(path, new PartitionSpec(Lines.pairs(q, "spec")), false)); return true;
            case "partitions": return partitions(admin, path);
            case "append": return append(c, at, path, q);
            case "turned-away": { // rows that error 74 has refused since it was asked the last time
                int rows = turnedAway;
                turnedAway = 0;
                return rows;
            }
            case "upsert": return upsert(c, path, q);
            case "delete": return delete(c, path, q);
            case "lookup": return lookup(c, path, q);
            case "prefix-lookup": return prefixLookup(c, path, q);
            case "limit": return values(c, path, q);
            case "state": return state(c, admin, path);
            case "offsets": return offsets(admin, path, Lines.text(q, "which", "latest").equals("latest") ? new OffsetSpec.LatestSpec() : new OffsetSpec.EarliestSpec());
            case "scan": return scan(c, admin, path, q);
            case "lake-snapshot": return lakeSnapshot(admin, path);
            default: throw new IllegalArgumentException("no command `" + cmd + "`");
        }
    }

    private static <T> T get(Future<T> f) throws Exception { return f.get(40, TimeUnit.SECONDS); }

    private static Map<String, Object> map(Object... kv) {
        Map<String, Object> m = new LinkedHashMap<>();
        for (int i = 0; i < kv.length; i += 2) m.put((String) kv[i], kv[i + 1]);
        return m;
    }

    // ---- tables

    /** columns [[name, type]…], keys, partitions, bucket-keys, buckets, properties (without "table." they are custom ones). */
    private static Object create(Admin admin, TablePath path, JsonObject q) throws Exception {
        Schema.Builder schema = Schema.newBuilder();
        for (JsonElement e : q.getAsJsonArray("columns")) schema.column(e.getAsJsonArray().get(0).getAsString(), DataTypes.parse(e.getAsJsonArray().get(1).getAsString()));
        if (q.has("keys")) schema.primaryKey(Lines.texts(q, "keys").toArray(new String[0]));
        TableDescriptor.Builder table = TableDescriptor.builder().schema(schema.build())
                .distributedBy(Lines.number(q, "buckets", 1), Lines.texts(q, "bucket-keys").toArray(new String[0]))
                .partitionedBy(Lines.texts(q, "partitions").toArray(new String[0]));
        Lines.pairs(q, "properties").forEach((k, v) -> { if (k.startsWith("table.")) table.property(k, v); else table.customProperty(k, v); });
        get(admin.createDatabase(path.getDatabaseName(), DatabaseDescriptor.EMPTY, true));
        get(admin.createTable(path, table.build(), false));
        if (q.has("settle")) settle(admin, path.getDatabaseName());
        return get(admin.getTableInfo(path)).getTableId();
    }

    /**
     * Waits until a real coordinator knows the tables that were created: one that is told of a partition before its table throws, and is of no use afterwards.
     * It takes events in order, so a table whose leader answers shows that those before are known.
     */
    private static void settle(Admin admin, String db) throws Exception {
        TablePath last = TablePath.of(db, "settled_" + Long.toHexString(System.nanoTime()));
        get(admin.createTable(last, TableDescriptor.builder().schema(Schema.newBuilder().column("a", DataTypes.INT()).build()).distributedBy(1).build(), false));
        for (long end = System.nanoTime() + 60_000_000_000L; ; Thread.sleep(50)) {
            try {
                get(admin.listOffsets(last, List.of(0), new OffsetSpec.LatestSpec()).all());
                break;
            } catch (Exception e) { // no leader yet
                if (System.nanoTime() > end) throw e;
            }
        }
        get(admin.dropTable(last, false));
    }

    private static Object info(TableInfo i) {
        List<List<String>> columns = new ArrayList<>();
        i.getRowType().getFields().forEach(f -> columns.add(List.of(f.getName(), f.getType().toString())));
        return map("id", i.getTableId(), "schema-id", i.getSchemaId(), "columns", columns, "buckets", i.getNumBuckets(), "bucket-keys", i.getBucketKeys(),
                "partitions", i.getPartitionKeys(), "keys", i.getPrimaryKeys(), "properties", i.getProperties().toMap(), "custom", i.getCustomProperties().toMap());
    }

    private static List<TableChange> changes(Map<String, String> properties) {
        List<TableChange> all = new ArrayList<>();
        properties.forEach((k, v) -> all.add(TableChange.set(k, v)));
        return all;
    }

    /** Columns [[name, type]…] behind all others. */
    private static List<TableChange> added(JsonArray columns) {
        List<TableChange> all = new ArrayList<>();
        for (JsonElement e : columns) {
            JsonArray column = e.getAsJsonArray();
            all.add(TableChange.addColumn(column.get(0).getAsString(), DataTypes.parse(column.get(1).getAsString()), null, TableChange.ColumnPosition.last()));
        }
        return all;
    }

    private static TableChange bucketCount(int count) throws Exception {
        return (TableChange) TableChange.class.getMethod("modifyBucketCount", int.class).invoke(null, count);
    }

    /** All of set, reset, add (INT columns), drop and count in one request. How it ended: [code, class, text], code 0 = done, null = the client did not send it. */
    private static Object outcome(Admin admin, TablePath path, JsonObject q) throws Exception {
        CompletableFuture<Void> answer;
        try {
            List<TableChange> all = changes(Lines.pairs(q, "set"));
            for (String key : Lines.texts(q, "reset")) all.add(TableChange.reset(key));
            for (String column : Lines.texts(q, "add")) all.add(TableChange.addColumn(column, DataTypes.INT(), null, TableChange.ColumnPosition.last()));
            for (String column : Lines.texts(q, "drop")) all.add(TableChange.dropColumn(column));
            if (q.has("count")) all.add(bucketCount(q.get("count").getAsInt()));
            answer = admin.alterTable(path, all, false);
        } catch (Exception e) {
            Throwable root = e;
            while (root.getCause() != null) root = root.getCause();
            return Arrays.asList(null, root.getClass().getSimpleName(), root.getMessage());
        }
        try {
            get(answer);
            return Arrays.asList(0, null, "");
        } catch (ExecutionException e) {
            var error = org.apache.fluss.rpc.protocol.Errors.forException(e.getCause());
            return Arrays.asList(error.code(), e.getCause().getClass().getSimpleName(), e.getCause().getMessage());
        }
    }

    private static Object alter(Admin admin, TablePath path, List<TableChange> changes) throws Exception {
        get(admin.alterTable(path, changes, false));
        return true;
    }

    private static Integer count(PartitionInfo p) throws Exception {
        try {
            return (Integer) PartitionInfo.class.getMethod("getBucketCount").invoke(p);
        } catch (NoSuchMethodException e) {
            return null;
        }
    }

    private static Object partitions(Admin admin, TablePath path) throws Exception {
        List<Object> all = new ArrayList<>();
        for (PartitionInfo p : get(admin.listPartitionInfos(path)))
            all.add(map("id", p.getPartitionId(), "name", p.getPartitionName(), "buckets", count(p), "spec", p.getPartitionSpec().getSpecMap()));
        return all;
    }

    /** Offsets of every bucket as [partition name or null, partition id or null, bucket, offset]. */
    private static List<List<Object>> offsets(Admin admin, TablePath path, OffsetSpec spec) throws Exception {
        TableInfo info = get(admin.getTableInfo(path));
        List<List<Object>> all = new ArrayList<>();
        if (info.isPartitioned()) {
            for (PartitionInfo p : get(admin.listPartitionInfos(path))) {
                Integer n = count(p);
                get(admin.listOffsets(path, p.getPartitionName(), buckets(n == null ? info.getNumBuckets() : n), spec).all())
                        .forEach((b, o) -> all.add(Arrays.asList(p.getPartitionName(), p.getPartitionId(), ((Number) b(b)).intValue(), o)));
            }
        } else {
            get(admin.listOffsets(path, buckets(info.getNumBuckets()), spec).all()).forEach((b, o) -> all.add(Arrays.asList(null, null, ((Number) b(b)).intValue(), o)));
        }
        return all;
    }

    private static Object b(Object bucket) { return bucket instanceof TableBucket ? ((TableBucket) bucket).getBucket() : bucket; }

    private static List<Integer> buckets(int n) {
        List<Integer> all = new ArrayList<>();
        for (int i = 0; i < n; i++) all.add(i);
        return all;
    }

    private static Object lakeSnapshot(Admin admin, TablePath path) throws Exception {
        LakeSnapshot s = get(admin.getLatestLakeSnapshot(path));
        List<Object> all = new ArrayList<>();
        s.getTableBucketsOffset().forEach((b, o) -> all.add(Arrays.asList(b.getPartitionId(), b.getBucket(), o)));
        return map("id", s.getSnapshotId(), "offsets", all);
    }

    // ---- rows

    /**
     * rows [[value…]…]; every N rows a flush with `flush-every`. What a rescale has turned away is sent again, as that error asks.
     * `writer` names a table that stays open, and knows the columns that there were at its first use.
     */
    private Object append(Connection c, String at, TablePath path, JsonObject q) throws Exception {
        int every = Lines.number(q, "flush-every", 0), sent = 0;
        String writer = q.has("writer") ? at + " " + q.get("writer").getAsString() : null;
        Table kept = writer == null ? null : tables.get(writer), t = kept == null ? c.getTable(path) : kept;
        if (writer != null) tables.put(writer, t);
        try {
            AppendWriter w = t.newAppend().createWriter();
            List<GenericRow> rows = new ArrayList<>();
            for (JsonElement row : q.getAsJsonArray("rows")) rows.add(row(row.getAsJsonArray(), t.getTableInfo().getRowType()));
            for (int attempt = 0; !rows.isEmpty(); attempt++) {
                List<GenericRow> again = new ArrayList<>();
                List<CompletableFuture<?>> results = new ArrayList<>();
                for (GenericRow row : rows) {
                    results.add(w.append(row));
                    if (every > 0 && results.size() % every == 0) w.flush();
                }
                w.flush();
                for (int i = 0; i < results.size(); i++) {
                    try {
                        get(results.get(i));
                        sent++;
                    } catch (ExecutionException e) {
                        if (attempt == 3 || !e.getCause().getClass().getSimpleName().equals("BucketRescaleException")) throw e;
                        turnedAway++;
                        again.add(rows.get(i));
                    }
                }
                rows = again;
            }
        } finally {
            if (writer == null) t.close();
        }
        return sent;
    }

    /** rows, or changes [["+" or "-", row]…] in that order: upserts and deletes; every N a flush with `flush-every`. */
    private static Object upsert(Connection c, TablePath path, JsonObject q) throws Exception {
        try (Table t = c.getTable(path)) {
            UpsertWriter w = t.newUpsert().createWriter();
            RowType type = t.getTableInfo().getRowType();
            List<CompletableFuture<?>> sent = new ArrayList<>();
            if (q.has("rows")) for (JsonElement row : q.getAsJsonArray("rows")) sent.add(w.upsert(row(row.getAsJsonArray(), type)));
            if (q.has("changes")) {
                int every = Lines.number(q, "flush-every", 0);
                for (JsonElement change : q.getAsJsonArray("changes")) {
                    GenericRow row = row(change.getAsJsonArray().get(1).getAsJsonArray(), type);
                    sent.add(change.getAsJsonArray().get(0).getAsString().equals("-") ? w.delete(row) : w.upsert(row));
                    if (every > 0 && sent.size() % every == 0) w.flush();
                }
                w.flush();
            }
            for (CompletableFuture<?> f : sent) get(f);
            return sent.size();
        }
    }

    /** Whole rows, of which the keys count. */
    private static Object delete(Connection c, TablePath path, JsonObject q) throws Exception {
        try (Table t = c.getTable(path)) {
            UpsertWriter w = t.newUpsert().createWriter();
            List<CompletableFuture<?>> sent = new ArrayList<>();
            for (JsonElement row : q.getAsJsonArray("rows")) sent.add(w.delete(row(row.getAsJsonArray(), t.getTableInfo().getRowType())));
            for (CompletableFuture<?> f : sent) get(f);
            return sent.size();
        }
    }

    /** The row of each of `keys`, or null, all asked at once. */
    private static Object lookup(Connection c, TablePath path, JsonObject q) throws Exception {
        try (Table t = c.getTable(path)) {
            RowType type = t.getTableInfo().getRowType(), keys = type.project(t.getTableInfo().getPrimaryKeys());
            var lookuper = t.newLookup().createLookuper();
            List<CompletableFuture<org.apache.fluss.client.lookup.LookupResult>> asked = new ArrayList<>();
            for (JsonElement key : q.getAsJsonArray("keys")) asked.add(lookuper.lookup(row(key.getAsJsonArray(), keys)));
            List<Object> rows = new ArrayList<>();
            for (var f : asked) rows.add(plainRow(type, get(f).getSingletonRow()));
            return rows;
        }
    }

    /** All rows whose `columns` (partition columns and bucket key) are the values of each of `keys`. */
    private static Object prefixLookup(Connection c, TablePath path, JsonObject q) throws Exception {
        try (Table t = c.getTable(path)) {
            List<String> columns = Lines.texts(q, "columns");
            RowType type = t.getTableInfo().getRowType(), keys = type.project(columns);
            var lookuper = t.newLookup().lookupBy(columns).createLookuper();
            List<Object> all = new ArrayList<>();
            for (JsonElement key : q.getAsJsonArray("keys")) {
                List<Object> rows = new ArrayList<>();
                for (InternalRow row : get(lookuper.lookup(row(key.getAsJsonArray(), keys))).getRowList()) rows.add(plainRow(type, row));
                all.add(rows);
            }
            return all;
        }
    }

    /** The first `limit` rows of bucket `bucket`. */
    private static Object values(Connection c, TablePath path, JsonObject q) throws Exception {
        try (Table t = c.getTable(path)) {
            TableBucket bucket = new TableBucket(t.getTableInfo().getTableId(), Lines.number(q, "bucket", 0));
            return drained(t.getTableInfo().getRowType(), t.newScan().limit(Lines.number(q, "limit", 1)).createBatchScanner(bucket));
        }
    }

    /** All rows that the state of every bucket has: ScanKv, which 0.9.1 lacks. */
    private static Object state(Connection c, Admin admin, TablePath path) throws Exception {
        List<Object> rows = new ArrayList<>();
        try (Table t = c.getTable(path)) {
            for (List<Object> o : offsets(admin, path, new OffsetSpec.LatestSpec())) {
                TableBucket bucket = new TableBucket(t.getTableInfo().getTableId(), (Long) o.get(1), (Integer) o.get(2));
                rows.addAll(drained(t.getTableInfo().getRowType(), t.newScan().createBatchScanner(bucket)));
            }
        }
        return rows;
    }

    private static List<Object> drained(RowType type, org.apache.fluss.client.table.scanner.batch.BatchScanner scanner) throws Exception {
        List<Object> rows = new ArrayList<>();
        long end = System.nanoTime() + 30_000_000_000L;
        try (scanner) {
            for (Iterator<InternalRow> batch; (batch = scanner.pollBatch(Duration.ofSeconds(1))) != null; ) {
                while (batch.hasNext()) rows.add(plainRow(type, batch.next()));
                if (System.nanoTime() > end) throw new TimeoutException("still no end after " + rows.size() + " rows");
            }
        }
        return rows;
    }

    private static List<Object> plainRow(RowType type, InternalRow row) {
        if (row == null) return null;
        List<Object> values = new ArrayList<>();
        for (int i = 0; i < type.getFieldCount(); i++) values.add(plain(type.getTypeAt(i), InternalRow.createFieldGetter(type.getTypeAt(i), i).getFieldOrNull(row)));
        return values;
    }

    private static GenericRow row(JsonArray values, RowType type) {
        GenericRow row = new GenericRow(type.getFieldCount());
        for (int i = 0; i < type.getFieldCount(); i++) if (!values.get(i).isJsonNull()) row.setField(i, internal(type.getTypeAt(i), values.get(i)));
        return row;
    }

    /** Nested values come and go as README.md says: a list, a list of pairs, an object. */
    private static Object internal(DataType type, JsonElement e) {
        if (e.isJsonNull()) return null;
        switch (type.getTypeRoot()) {
            case ARRAY: return new GenericArray(all(((ArrayType) type).getElementType(), e.getAsJsonArray()));
            case MAP: {
                Map<Object, Object> m = new LinkedHashMap<>();
                for (JsonElement pair : e.getAsJsonArray()) {
                    Object[] kv = {internal(((MapType) type).getKeyType(), pair.getAsJsonArray().get(0)), internal(((MapType) type).getValueType(), pair.getAsJsonArray().get(1))};
                    m.put(kv[0], kv[1]);
                }
                return new GenericMap(m);
            }
            case ROW: {
                RowType row = (RowType) type;
                JsonArray values = new JsonArray();
                for (String name : row.getFieldNames()) values.add(e.getAsJsonObject().get(name));
                return row(values, row);
            }
            default:
        }
        Object v = Lines.plain(type.getTypeRoot().name(), e);
        switch (type.getTypeRoot()) {
            case CHAR: case STRING: return BinaryString.fromString((String) v);
            case DECIMAL: return Decimal.fromBigDecimal((java.math.BigDecimal) v, ((DecimalType) type).getPrecision(), ((DecimalType) type).getScale());
            case TIMESTAMP_WITHOUT_TIME_ZONE: return TimestampNtz.fromLocalDateTime((java.time.LocalDateTime) v);
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE: return TimestampLtz.fromInstant(((java.time.LocalDateTime) v).toInstant(ZoneOffset.UTC));
            default: return v;
        }
    }

    private static Object[] all(DataType type, JsonArray values) {
        Object[] all = new Object[values.size()];
        for (int i = 0; i < all.length; i++) all[i] = internal(type, values.get(i));
        return all;
    }

    private static List<Object> list(DataType type, InternalArray values) {
        InternalArray.ElementGetter getter = InternalArray.createElementGetter(type);
        List<Object> all = new ArrayList<>();
        for (int i = 0; i < values.size(); i++) all.add(plain(type, getter.getElementOrNull(values, i)));
        return all;
    }

    private static Object plain(DataType type, Object v) {
        if (v == null) return null;
        int precision = 0;
        switch (type.getTypeRoot()) {
            case ARRAY: return list(((ArrayType) type).getElementType(), (InternalArray) v);
            case MAP: {
                List<Object> k = list(((MapType) type).getKeyType(), ((InternalMap) v).keyArray()), x = list(((MapType) type).getValueType(), ((InternalMap) v).valueArray());
                List<Object> all = new ArrayList<>();
                for (int i = 0; i < k.size(); i++) all.add(Arrays.asList(k.get(i), x.get(i)));
                return all;
            }
            case ROW: {
                RowType row = (RowType) type;
                Map<String, Object> all = new LinkedHashMap<>();
                for (int i = 0; i < row.getFieldCount(); i++) all.put(row.getFieldNames().get(i), plain(row.getTypeAt(i), InternalRow.createFieldGetter(row.getTypeAt(i), i).getFieldOrNull((InternalRow) v)));
                return all;
            }
            case DECIMAL: v = ((Decimal) v).toBigDecimal(); break;
            case TIMESTAMP_WITHOUT_TIME_ZONE: precision = ((TimestampType) type).getPrecision(); v = ((TimestampNtz) v).toLocalDateTime(); break;
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                precision = ((LocalZonedTimestampType) type).getPrecision();
                v = java.time.LocalDateTime.ofInstant(((TimestampLtz) v).toInstant(), ZoneOffset.UTC);
                break;
            default:
        }
        return Lines.show(type.getTypeRoot().name(), precision, v);
    }

    /** Every row up to the offsets known now, as [partition name or null, bucket, offset, change, values, commit ms]; `columns` projects. */
    private static Object scan(Connection c, Admin admin, TablePath path, JsonObject q) throws Exception {
        List<Object> rows = new ArrayList<>();
        Map<TableBucket, Long> ends = new HashMap<>();
        Map<Long, String> names = new HashMap<>();
        try (Table t = c.getTable(path)) {
            RowType type = t.getTableInfo().getRowType();
            Scan scan = t.newScan();
            List<String> columns = Lines.texts(q, "columns");
            if (!columns.isEmpty()) {
                int[] picked = columns.stream().mapToInt(type::getFieldIndex).toArray();
                scan = scan.project(picked);
                type = type.project(picked);
            }
            InternalRow.FieldGetter[] getters = new InternalRow.FieldGetter[type.getFieldCount()];
            for (int i = 0; i < getters.length; i++) getters[i] = InternalRow.createFieldGetter(type.getTypeAt(i), i);
            try (LogScanner scanner = scan.createLogScanner()) {
                for (List<Object> o : offsets(admin, path, new OffsetSpec.LatestSpec())) {
                    long end = (Long) o.get(3);
                    if (end <= 0) continue;
                    Long partition = (Long) o.get(1);
                    int bucket = (Integer) o.get(2);
                    names.put(partition, (String) o.get(0));
                    ends.put(new TableBucket(t.getTableInfo().getTableId(), partition, bucket), end);
                    if (partition == null) scanner.subscribeFromBeginning(bucket);
                    else scanner.subscribeFromBeginning(partition, bucket);
                }
                long deadline = System.nanoTime() + Duration.ofSeconds(Lines.number(q, "seconds", 30)).toNanos();
                while (!ends.isEmpty()) {
                    if (System.nanoTime() > deadline) throw new TimeoutException("scan of " + path + " still waits for " + ends + " after " + rows.size() + " rows");
                    var records = scanner.poll(Duration.ofMillis(200));
                    for (TableBucket b : records.buckets()) for (ScanRecord r : records.records(b)) {
                        List<Object> values = new ArrayList<>();
                        for (int i = 0; i < getters.length; i++) values.add(plain(type.getTypeAt(i), getters[i].getFieldOrNull(r.getRow())));
                        rows.add(Arrays.asList(names.get(b.getPartitionId()), b.getBucket(), r.logOffset(), r.getChangeType().shortString(), values, r.timestamp()));
                        if (ends.containsKey(b) && r.logOffset() + 1 >= ends.get(b)) ends.remove(b);
                    }
                }
            }
        }
        return rows;
    }
}
