import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Commits a transaction, and aborts the next one at once, again and again: the records of the latter are still in the
 * client's buffer. Arguments: the brokers, a topic, how many rounds, linger.ms, "wait" or "hurry".
 *
 * A client of Kafka 4.3.1 may send EndTxn before the records of the transaction: its network thread reads
 * whether there are unsent records, and after that takes the next request. If the application begins a transaction,
 * sends a record and commits between the two, the broker gets a commit of nothing, and responds INVALID_TXN_STATE. With
 * "wait", a transaction begins only when the network thread waits for the network, so that this cannot happen.
 */
public final class EndLoop {
    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", arguments[0],
                "transactional.id", "java-end-loop",
                "linger.ms", Integer.parseInt(arguments[3]),
                "key.serializer", StringSerializer.class,
                "value.serializer", StringSerializer.class);
        int rounds = Integer.parseInt(arguments[2]);
        boolean waits = arguments[4].equals("wait");
        try (var producer = new KafkaProducer<String, String>(settings)) {
            producer.initTransactions();
            Thread network = networkThread();
            for (int round = 0; round < rounds; round++) {
                for (String end : List.of("commit", "abort")) {
                    while (waits && !isWaiting(network)) {
                        Thread.yield();
                    }
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>(arguments[1], "java " + round + " " + end));
                    if (end.equals("commit")) {
                        producer.commitTransaction();
                    } else {
                        producer.abortTransaction();
                    }
                }
            }
            System.out.println("done");
        } catch (RuntimeException error) {
            System.out.println(error); // the launcher of source files cannot show errors of all kinds
        }
    }

    private static Thread networkThread() {
        return Thread.getAllStackTraces().keySet().stream()
                .filter(thread -> thread.getName().startsWith("kafka-producer-network-thread"))
                .findFirst()
                .orElseThrow();
    }

    private static boolean isWaiting(Thread network) {
        return Arrays.stream(network.getStackTrace())
                .anyMatch(frame -> frame.getClassName().equals("org.apache.kafka.common.network.Selector")
                        && frame.getMethodName().equals("select"));
    }
}
