import com.google.gson.JsonObject;
import java.time.*;
import java.util.*;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.*;
import org.apache.flink.table.types.logical.*;
import org.apache.flink.table.types.logical.utils.LogicalTypeChecks;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/** Flink SQL, in batch mode, in a mini cluster of this JVM: a statement, or several separated by {@code ;} at the ends of lines, and the rows of the last one. */
public final class FlinkSql {
    public static void main(String[] args) throws Exception {
        Configuration options = Configuration.fromMap(Map.of("parallelism.default", "1", "table.local-time-zone", "UTC", "table.dml-sync", "true", "taskmanager.memory.managed.size", "64m"));
        TableEnvironment sql = TableEnvironment.create(EnvironmentSettings.newInstance().inBatchMode().withConfiguration(options).build());
        Lines.serve(request -> answer(sql, request));
    }

    private static Object answer(TableEnvironment sql, JsonObject request) throws Exception {
        List<Object> rows = new ArrayList<>();
        for (String statement : request.get("cmd").getAsString().split(";\\s*(\n|$)")) {
            if (statement.isBlank()) continue;
            rows.clear();
            TableResult result = sql.executeSql(statement);
            List<LogicalType> types = new ArrayList<>();
            result.getResolvedSchema().getColumnDataTypes().forEach(type -> types.add(type.getLogicalType()));
            try (CloseableIterator<Row> all = result.collect()) {
                while (all.hasNext()) rows.add(values(all.next(), types));
            }
        }
        return rows;
    }

    private static List<Object> values(Row row, List<LogicalType> types) {
        List<Object> all = new ArrayList<>();
        for (int i = 0; i < types.size(); i++) all.add(value(row.getField(i), types.get(i)));
        return all;
    }

    private static Object value(Object v, LogicalType type) {
        if (v == null) return null;
        List<LogicalType> inside = type.getChildren();
        switch (type.getTypeRoot()) {
            case DATE: v = (int) ((LocalDate) v).toEpochDay(); break;
            case TIME_WITHOUT_TIME_ZONE: v = (int) (((LocalTime) v).toNanoOfDay() / 1_000_000); break;
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE: v = LocalDateTime.ofInstant((Instant) v, ZoneOffset.UTC); // as the one without
            case TIMESTAMP_WITHOUT_TIME_ZONE: return Lines.show(type.getTypeRoot().name(), LogicalTypeChecks.getPrecision(type), v);
            case ARRAY: {
                List<Object> all = new ArrayList<>();
                for (Object x : (Object[]) v) all.add(value(x, inside.get(0)));
                return all;
            }
            case MAP: {
                List<Object> all = new ArrayList<>();
                ((Map<?, ?>) v).forEach((k, x) -> all.add(Arrays.asList(value(k, inside.get(0)), value(x, inside.get(1)))));
                all.sort(Comparator.comparing(Object::toString));
                return all;
            }
            case ROW: {
                List<Object> fields = values((Row) v, inside);
                Map<String, Object> m = new LinkedHashMap<>();
                for (int i = 0; i < fields.size(); i++) m.put(((RowType) type).getFieldNames().get(i), fields.get(i));
                return m;
            }
            default:
        }
        return Lines.show(type.getTypeRoot().name(), 0, v);
    }
}
