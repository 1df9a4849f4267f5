import com.google.gson.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.*;
import org.apache.fluss.client.metadata.LakeSnapshot;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.batch.BatchScanner;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.cluster.rebalance.*;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.config.cluster.*;
import org.apache.fluss.metadata.*;
import org.apache.fluss.predicate.PredicateBuilder;
import org.apache.fluss.row.*;
import org.apache.fluss.security.acl.*;

/** What else the API of fluss-client 1.0.0 has: each call by its name, on a log table (a INT, b STRING, c BIGINT) and a partitioned one. `calls` lists them. */
public final class FlussTour {
    private interface Call { Object run() throws Exception; }

    private final Map<String, Call> calls = new LinkedHashMap<>();
    private Connection c;

    public static void main(String[] args) throws Exception { Lines.serve(new FlussTour()::answer); }

    private Object answer(JsonObject q) throws Exception {
        switch (q.get("cmd").getAsString()) {
            case "open": return open(q);
            case "calls": return new ArrayList<>(calls.keySet());
            case "close": c.close(); return true;
            default: return String.valueOf(calls.get(q.get("cmd").getAsString()).run());
        }
    }

    private static <T> T get(Future<T> f) throws Exception { return f.get(15, TimeUnit.SECONDS); }

    private Object open(JsonObject q) throws Exception {
        Configuration conf = new Configuration();
        conf.setString("bootstrap.servers", q.get("at").getAsString());
        c = ConnectionFactory.createConnection(conf);
        Admin a = c.getAdmin();
        TablePath log = TablePath.of("tour", "log"), part = TablePath.of("tour", "part");
        TablePath pk = TablePath.of("tour", "pk");
        TableInfo info = get(a.getTableInfo(log));
        TableBucket bucket = new TableBucket(info.getTableId(), 0);
        List<Integer> one = List.of(0), servers = List.of(get(a.getServerNodes()).get(0).id());
        AclBinding acl = new AclBinding(Resource.table(log), new AccessControlEntry(new FlussPrincipal("otto", "User"), "*", OperationType.READ, PermissionType.ALLOW));
        KvSnapshotLease lease = a.createKvSnapshotLease("lease", 60_000);
        GenericRow key = GenericRow.of(1);
        // databases and tables
        calls.put("databaseExists", () -> get(a.databaseExists("tour")));
        calls.put("getDatabaseInfo", () -> get(a.getDatabaseInfo("tour")).getDatabaseName());
        calls.put("listDatabaseSummaries", () -> get(a.listDatabaseSummaries()).stream().map(DatabaseSummary::getDatabaseName).sorted().toList());
        calls.put("alterDatabase", () -> get(a.alterDatabase("tour", List.of(DatabaseChange.set("owner", "otto")), false)));
        calls.put("getTableSchema", () -> get(a.getTableSchema(log)).getSchemaId());
        calls.put("getTableSchema(id)", () -> get(a.getTableSchema(log, 1)).getSchema().getColumnNames());
        calls.put("getTableSchema(unknown)", () -> get(a.getTableSchema(log, 99)));
        calls.put("getTableStats", () -> get(a.getTableStats(log)).getRowCount());
        calls.put("listPartitionInfos(spec)", () -> get(a.listPartitionInfos(part, new PartitionSpec(Map.of("b", "p1")))).stream().map(PartitionInfo::getPartitionName).toList());
        calls.put("listPartitionInfos(log)", () -> get(a.listPartitionInfos(log)));
        calls.put("createTable(key)", () -> get(a.createTable(pk, keyed().build(), false)));
        calls.put("createTable(engine)", () -> get(a.createTable(TablePath.of("tour", "no"), keyed().property("table.merge-engine", "first_row").build(), false)));
        calls.put("createTable(ttl)", () -> get(a.createTable(TablePath.of("tour", "no"), keyed().property("table.kv.ttl", "1h").build(), false)));
        calls.put("createTable(increment)", () -> get(a.createTable(TablePath.of("tour", "no"), TableDescriptor.builder().schema(Schema.newBuilder()
                .column("a", org.apache.fluss.types.DataTypes.INT()).column("b", org.apache.fluss.types.DataTypes.INT()).primaryKey("a").enableAutoIncrement("b").build())
                .distributedBy(1).build(), false)));
        // offsets and scans
        calls.put("listOffsets(time)", () -> get(a.listOffsets(log, one, new OffsetSpec.TimestampSpec(1)).all()));
        calls.put("listOffsets(future)", () -> get(a.listOffsets(log, one, new OffsetSpec.TimestampSpec(System.currentTimeMillis() + 3_600_000)).all()));
        calls.put("listOffsets(bucket)", () -> get(a.listOffsets(log, List.of(77), new OffsetSpec.LatestSpec()).all()));
        calls.put("scan(limit)", () -> batch(c.getTable(log).newScan().limit(5).createBatchScanner(bucket)));
        calls.put("scan(filter)", () -> filtered(log));
        calls.put("scan(offset)", () -> polled(log, 1_000_000));
        calls.put("scan(whole)", () -> batch(c.getTable(log).newScan().createBatchScanner()));
        calls.put("scan(snapshot)", () -> batch(c.getTable(log).newScan().createBatchScanner(bucket, 1)));
        // keys
        calls.put("lookup", () -> get(c.getTable(log).newLookup().createLookuper().lookup(key)));
        calls.put("prefixLookup", () -> get(c.getTable(log).newLookup().lookupBy("a").createLookuper().lookup(key)));
        calls.put("upsert", () -> get(c.getTable(log).newUpsert().createWriter().upsert(GenericRow.of(1, null, 2L))));
        calls.put("partialUpdate", () -> get(c.getTable(log).newUpsert().partialUpdate("a").createWriter().upsert(GenericRow.of(1, null, null))));
        calls.put("upsert(key)", () -> get(c.getTable(pk).newUpsert().createWriter().upsert(GenericRow.of(1, 2L, null))) != null);
        calls.put("partialUpdate(key)", () -> get(c.getTable(pk).newUpsert().partialUpdate("a", "b").createWriter().upsert(GenericRow.of(1, 3L, null))));
        calls.put("lookup(insert)", () -> get(c.getTable(pk).newLookup().enableInsertIfNotExists().createLookuper().lookup(GenericRow.of(9))).getSingletonRow());
        calls.put("getTableStats(key)", () -> get(a.getTableStats(pk)).getRowCount());
        calls.put("scan(limit, key)", () -> batch(c.getTable(pk).newScan().limit(5).createBatchScanner(new TableBucket(get(a.getTableInfo(pk)).getTableId(), 0))));
        calls.put("scan(whole, key)", () -> batch(c.getTable(pk).newScan().createBatchScanner()));
        calls.put("getLatestKvSnapshots(key)", () -> get(a.getLatestKvSnapshots(pk)).getBucketIds());
        calls.put("getLatestKvSnapshots", () -> get(a.getLatestKvSnapshots(log)).getBucketIds());
        calls.put("getKvSnapshotMetadata", () -> get(a.getKvSnapshotMetadata(bucket, 1)));
        calls.put("listKvSnapshots", () -> get(a.listKvSnapshots(info.getTableId(), null)));
        calls.put("acquireSnapshots", () -> get(lease.acquireSnapshots(Map.of(bucket, 1L))));
        calls.put("renew", () -> get(lease.renew()));
        calls.put("releaseSnapshots", () -> get(lease.releaseSnapshots(Set.of(bucket))));
        calls.put("dropLease", () -> get(lease.dropLease()));
        // lake
        calls.put("getLakeSnapshot", () -> snapshot(get(a.getLakeSnapshot(log, 1))));
        calls.put("getLakeSnapshot(unknown)", () -> snapshot(get(a.getLakeSnapshot(log, 99))));
        calls.put("getReadableLakeSnapshot", () -> snapshot(get(a.getReadableLakeSnapshot(log))));
        // the cluster
        calls.put("describeClusterConfigs", () -> get(a.describeClusterConfigs()).stream().map(ConfigEntry::key).anyMatch("datalake.format"::equals));
        calls.put("alterClusterConfigs", () -> get(a.alterClusterConfigs(List.of(new AlterConfig("datalake.format", "iceberg", AlterConfigOpType.SET)))));
        calls.put("listAcls", () -> get(a.listAcls(AclBindingFilter.ANY)));
        calls.put("createAcls", () -> get(a.createAcls(List.of(acl)).all()));
        calls.put("dropAcls", () -> get(a.dropAcls(List.of(AclBindingFilter.ANY)).all()));
        calls.put("addServerTag", () -> get(a.addServerTag(servers, ServerTag.TEMPORARY_OFFLINE)));
        calls.put("removeServerTag", () -> get(a.removeServerTag(servers, ServerTag.TEMPORARY_OFFLINE)));
        calls.put("addServerTagByRack", () -> get(a.addServerTagByRack(List.of("rack"), ServerTag.TEMPORARY_OFFLINE)));
        calls.put("removeServerTagByRack", () -> get(a.removeServerTagByRack(List.of("rack"), ServerTag.TEMPORARY_OFFLINE)));
        calls.put("rebalance", () -> get(a.rebalance(List.of(GoalType.LEADER_DISTRIBUTION))));
        calls.put("listRebalanceProgress", () -> get(a.listRebalanceProgress(null)));
        calls.put("cancelRebalance", () -> get(a.cancelRebalance(null)));
        calls.put("registerProducerOffsets", () -> get(a.registerProducerOffsets("p", Map.of(bucket, 1L))));
        calls.put("getProducerOffsets", () -> get(a.getProducerOffsets("p")));
        calls.put("deleteProducerOffsets", () -> get(a.deleteProducerOffsets("p")));
        calls.put("getClusterHealth", () -> get(a.getClusterHealth()));
        calls.put("listRemoteLogManifests", () -> get(a.listRemoteLogManifests(info.getTableId(), null)));
        return true;
    }

    private static TableDescriptor.Builder keyed() {
        return TableDescriptor.builder().schema(Schema.newBuilder().column("a", org.apache.fluss.types.DataTypes.INT()).column("b", org.apache.fluss.types.DataTypes.BIGINT())
                .column("c", org.apache.fluss.types.DataTypes.STRING()).primaryKey("a").build()).distributedBy(1);
    }

    private static Object snapshot(LakeSnapshot s) { return s.getSnapshotId() + " " + new TreeMap<>(byBucket(s)); }

    private static Map<Integer, Long> byBucket(LakeSnapshot s) {
        Map<Integer, Long> all = new HashMap<>();
        s.getTableBucketsOffset().forEach((b, o) -> all.put(b.getBucket(), o));
        return all;
    }

    private static Object batch(BatchScanner scanner) throws Exception {
        int rows = 0;
        long end = System.nanoTime() + 15_000_000_000L;
        try (scanner) {
            for (Iterator<InternalRow> batch; (batch = scanner.pollBatch(Duration.ofSeconds(1))) != null; ) {
                for (; batch.hasNext(); batch.next()) rows++;
                if (System.nanoTime() > end) throw new TimeoutException("still no end after " + rows + " rows");
            }
        }
        return rows;
    }

    private Object filtered(TablePath path) throws Exception {
        try (Table t = c.getTable(path); LogScanner s = t.newScan().filter(new PredicateBuilder(t.getTableInfo().getRowType()).equal(0, 7)).createLogScanner()) {
            s.subscribeFromBeginning(0);
            for (long end = System.nanoTime() + 15_000_000_000L; System.nanoTime() < end; ) if (s.poll(Duration.ofSeconds(1)).count() > 0) return true;
            throw new TimeoutException("no rows");
        }
    }

    /** A subscription beyond the end. */
    private Object polled(TablePath path, long offset) throws Exception {
        try (Table t = c.getTable(path); LogScanner s = t.newScan().createLogScanner()) {
            s.subscribe(0, offset);
            for (long end = System.nanoTime() + 15_000_000_000L; System.nanoTime() < end; ) s.poll(Duration.ofSeconds(1));
            throw new TimeoutException("no error");
        }
    }
}
