import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Apache Kafka's own consumer as a member of a group; see group_members/README.md. */
public final class GroupMember {
    private static final TreeSet<Integer> HELD = new TreeSet<>();

    private static void change(Collection<TopicPartition> partitions, boolean has) {
        for (TopicPartition each : partitions) {
            if (has) HELD.add(each.partition());
            else HELD.remove(each.partition());
        }
        System.out.println("{\"assigned\": " + HELD + "}");
    }

    private static String option(String json, String name, String otherwise) {
        Matcher found = Pattern.compile("\"" + name + "\": *\"?([^\",}]+)").matcher(json);
        return found.find() ? found.group(1) : otherwise;
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[2];
        String options = arguments[3];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("max.poll.records", "50");
        settings.put("reconnect.backoff.max.ms", "500");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        String protocol = option(options, "group_protocol", "classic");
        settings.put("group.protocol", protocol);
        if (protocol.equals("classic")) {
            settings.put("session.timeout.ms", option(options, "session_ms", "10000"));
            settings.put("heartbeat.interval.ms", "300");
            String prefix = "org.apache.kafka.clients.consumer.";
            String strategy =
                switch (option(options, "strategy", "default")) {
                    case "range" -> prefix + "RangeAssignor";
                    case "roundrobin" -> prefix + "RoundRobinAssignor";
                    case "cooperative-sticky" -> prefix + "CooperativeStickyAssignor";
                    default -> null;
                };
            if (strategy != null) settings.put("partition.assignment.strategy", strategy);
        }
        String instance = option(options, "instance", null);
        if (instance != null) settings.put("group.instance.id", instance);

        AtomicBoolean stopped = new AtomicBoolean();
        Thread watcher =
            new Thread(
                () -> {
                    try {
                        while (System.in.read() >= 0) {}
                    } catch (java.io.IOException gone) {
                        // the same as its end
                    }
                    stopped.set(true);
                });
        watcher.setDaemon(true);
        watcher.start();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(
                List.of(topic),
                new ConsumerRebalanceListener() {
                    @Override
                    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                        change(partitions, true);
                    }

                    @Override
                    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                        change(partitions, false);
                    }
                });
            while (!stopped.get()) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<String, String> each : records) {
                    System.out.println(
                        "{\"record\": [" + each.partition() + ", " + each.offset() + ", \"" + each.value() + "\"]}");
                }
                if (records.count() > 0) {
                    try {
                        consumer.commitSync();
                    } catch (KafkaException failure) {
                        // a rebalance or a restart: the next owner of the partition reads these records again
                    }
                }
            }
        }
    }
}
