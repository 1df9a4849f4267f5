import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.fluss.flink.tiering.FlussLakeTieringEntrypoint;

/** The real tiering job in a mini cluster of this JVM: as many slots as asked for (a plain main gets one per core). */
public final class TieringJob {
    public static void main(String[] args) {
        StreamExecutionEnvironment.setDefaultLocalParallelism(Integer.getInteger("lakeward.parallelism"));
        try {
            FlussLakeTieringEntrypoint.main(args);
        } catch (Throwable t) { // without this the mini cluster's threads keep the JVM alive
            t.printStackTrace();
            System.exit(1);
        }
    }
}
