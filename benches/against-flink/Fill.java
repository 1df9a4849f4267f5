import java.util.Arrays;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.client.table.writer.TableWriter;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.TimestampNtz;

/** Writes rows 0 to COUNT with the official client: {@code Fill HOST:PORT DB.TABLE log|pk COUNT}. A row is a function of its id: 12 columns, about 134 plain bytes. */
public final class Fill {
    private static final String[] WORDS = ("lake river stream delta basin harbor tide shore reef cove marsh inlet fjord lagoon brook estuary "
            + "anchor beacon buoy canal dock ferry jetty keel mast oar pier quay rudder sail wharf skiff").split(" ");
    private static final BinaryString[] REGIONS = new BinaryString[16], CUSTOMERS = new BinaryString[20_000], PRODUCTS = new BinaryString[2_000];

    static {
        for (int i = 0; i < REGIONS.length; i++) REGIONS[i] = BinaryString.fromString(String.format("region-%02d", i));
        for (int i = 0; i < CUSTOMERS.length; i++) CUSTOMERS[i] = BinaryString.fromString(String.format("cust-%08x", (int) mix(i)));
        for (int i = 0; i < PRODUCTS.length; i++) {
            long h = mix(i * 31L + 7);
            StringBuilder name = new StringBuilder(word(h) + "-" + word(h >>> 5) + "-" + (h >>> 10 & 0xfff));
            while (name.length() < 8 + (h >>> 30 & 15)) name.append('x');
            PRODUCTS[i] = BinaryString.fromString(name.toString());
        }
    }

    public static void main(String[] args) throws Exception {
        String[] table = args[1].split("\\.");
        boolean keyed = args[2].equals("pk");
        long count = Long.parseLong(args[3]);
        Configuration conf = new Configuration();
        conf.setString("bootstrap.servers", args[0]);
        AtomicReference<Throwable> failed = new AtomicReference<>();
        try (Connection connection = ConnectionFactory.createConnection(conf); Table t = connection.getTable(TablePath.of(table[0], table[1]))) {
            TableWriter writer = keyed ? t.newUpsert().createWriter() : t.newAppend().createWriter();
            for (long id = 0; id < count && failed.get() == null; id++) {
                var done = keyed ? ((UpsertWriter) writer).upsert(row(id)) : ((AppendWriter) writer).append(row(id));
                done.whenComplete((result, error) -> { if (error != null) failed.compareAndSet(null, error); });
            }
            writer.flush();
        }
        if (failed.get() != null) throw new IllegalStateException("not written", failed.get());
    }

    private static long mix(long z) { // splitmix64
        z += 0x9E3779B97F4A7C15L;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }

    private static String word(long bits) { return WORDS[(int) (bits & 31)]; }

    private static GenericRow row(long id) {
        long h = mix(id * 1_000_003L), g = mix(h);
        byte[] note = new byte[64];
        int length = 0;
        for (int k = 0; k < 5; k++) {
            String word = word(g >>> (5 * k));
            for (int c = 0; c < word.length() && length < 48; c++) note[length++] = (byte) word.charAt(c);
            note[length++] = ' ';
        }
        for (int k = 0; k < 16; k++) note[length < 64 ? length++ : 63] = (byte) "0123456789abcdef".charAt((int) (h >>> (k * 4) & 15));
        GenericRow r = new GenericRow(12);
        r.setField(0, id);
        r.setField(1, (int) (h & 0x3ff));
        r.setField(2, g >>> 20);
        r.setField(3, (h >>> 11) * 0x1.0p-53);
        r.setField(4, Decimal.fromUnscaledLong((g >>> 5) % 10_000_000L, 12, 2));
        r.setField(5, TimestampNtz.fromMillis(1_760_000_000_000L + id * 3, (int) (h & 999) * 1000));
        r.setField(6, 20_000 + (int) (id / 1000 % 365));
        r.setField(7, (h & 1) == 0);
        r.setField(8, REGIONS[(int) (id % REGIONS.length)]);
        r.setField(9, CUSTOMERS[(int) ((g >>> 8 & 0xffffff) % CUSTOMERS.length)]);
        r.setField(10, PRODUCTS[(int) ((h >>> 12 & 0xffffff) % PRODUCTS.length)]);
        r.setField(11, BinaryString.fromBytes(Arrays.copyOf(note, length)));
        return r;
    }
}
