import com.google.gson.*;
import java.io.*;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.*;
import java.time.format.DateTimeFormatter;
import java.util.*;

/**
 * One JSON request per line on stdin, one JSON answer per line on stdout; and the text form of a value that all programs of the suite share.
 *
 * <p>Plain values are Boolean, Byte, Short, Integer (also days and milliseconds of a day), Long, Float, Double, BigDecimal, String, byte[] and LocalDateTime.
 * In JSON: integers and booleans as such; FLOAT and DOUBLE as hex of their IEEE bits; the others as text, see README.md.
 */
final class Lines {
    interface Handler { Object answer(JsonObject request) throws Exception; }

    private Lines() {}

    static void serve(Handler handler) throws IOException {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err); // stdout is for answers only
        Gson gson = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16);
        for (String line; (line = in.readLine()) != null; ) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("ok", handler.answer(JsonParser.parseString(line).getAsJsonObject()));
            } catch (Throwable t) {
                t.printStackTrace();
                Throwable root = t;
                while (root.getCause() != null) root = root.getCause();
                answer.put("error", root.getClass().getSimpleName());
                answer.put("message", String.valueOf(root.getMessage()));
            }
            out.println(gson.toJson(answer));
        }
        System.exit(0); // clients leave threads behind
    }

    static String text(JsonObject o, String key, String missing) { return o.has(key) && !o.get(key).isJsonNull() ? o.get(key).getAsString() : missing; }

    static int number(JsonObject o, String key, int missing) { return o.has(key) ? o.get(key).getAsInt() : missing; }

    static List<String> texts(JsonObject o, String key) {
        List<String> all = new ArrayList<>();
        if (o.has(key)) o.getAsJsonArray(key).forEach(e -> all.add(e.getAsString()));
        return all;
    }

    static Map<String, String> pairs(JsonObject o, String key) {
        Map<String, String> all = new LinkedHashMap<>();
        if (o.has(key)) o.getAsJsonObject(key).entrySet().forEach(e -> all.put(e.getKey(), e.getValue().getAsString()));
        return all;
    }

    /** The JSON form of a plain value of that type root. */
    static Object show(String root, int precision, Object v) {
        switch (root) {
            case "FLOAT": return String.format("%08x", Float.floatToRawIntBits((Float) v));
            case "DOUBLE": return String.format("%016x", Double.doubleToRawLongBits((Double) v));
            case "DECIMAL": return ((BigDecimal) v).toPlainString();
            case "BINARY": case "VARBINARY": case "BYTES": return HexFormat.of().formatHex((byte[]) v);
            case "DATE": return LocalDate.ofEpochDay((Integer) v).toString();
            case "TIME_WITHOUT_TIME_ZONE": return LocalTime.ofNanoOfDay((Integer) v * 1_000_000L).format(DateTimeFormatter.ofPattern("HH:mm:ss.SSS"));
            case "TIMESTAMP_WITHOUT_TIME_ZONE": return stamp((LocalDateTime) v, precision);
            case "TIMESTAMP_WITH_LOCAL_TIME_ZONE": return stamp((LocalDateTime) v, precision) + "Z";
            default: return v instanceof Number || v instanceof Boolean ? v : v.toString();
        }
    }

    private static String stamp(LocalDateTime t, int precision) {
        String s = t.format(DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss"));
        return precision == 0 ? s : s + "." + String.format("%09d", t.getNano()).substring(0, precision);
    }

    /** The plain value behind the JSON form; the inverse of show. */
    static Object plain(String root, JsonElement e) {
        switch (root) {
            case "BOOLEAN": return e.getAsBoolean();
            case "TINYINT": return e.getAsByte();
            case "SMALLINT": return e.getAsShort();
            case "INTEGER": return e.getAsInt();
            case "BIGINT": return e.getAsLong();
            case "FLOAT": return Float.intBitsToFloat(Integer.parseUnsignedInt(e.getAsString(), 16));
            case "DOUBLE": return Double.longBitsToDouble(Long.parseUnsignedLong(e.getAsString(), 16));
            case "DECIMAL": return new BigDecimal(e.getAsString());
            case "BINARY": case "VARBINARY": case "BYTES": return HexFormat.of().parseHex(e.getAsString());
            case "DATE": return (int) LocalDate.parse(e.getAsString()).toEpochDay();
            case "TIME_WITHOUT_TIME_ZONE": return (int) (LocalTime.parse(e.getAsString()).toNanoOfDay() / 1_000_000);
            case "TIMESTAMP_WITHOUT_TIME_ZONE":
            case "TIMESTAMP_WITH_LOCAL_TIME_ZONE": return LocalDateTime.parse(e.getAsString().replace("Z", ""));
            default: return e.getAsString();
        }
    }
}
