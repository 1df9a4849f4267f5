import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.fluss.flink.tiering.FlussLakeTieringEntrypoint;

/** The real tiering job in a mini cluster of this JVM: one slot (a plain main gets one per core), and the JVM ends with the job. */
public final class TieringJob {
    public static void main(String[] args) {
        StreamExecutionEnvironment.setDefaultLocalParallelism(1);
        try {
            FlussLakeTieringEntrypoint.main(args);
        } catch (Throwable t) { // the mini cluster's threads would keep the JVM of a dead job alive
            t.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }
}
