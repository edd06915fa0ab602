import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Commits a transaction, and aborts the next one at once, again and again: the records of the latter are still in the
 * client's buffer. Arguments: the brokers, a topic, how many rounds, linger.ms.
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
        try (var producer = new KafkaProducer<String, String>(settings)) {
            producer.initTransactions();
            for (int round = 0; round < rounds; round++) {
                for (String end : List.of("commit", "abort")) {
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
}
