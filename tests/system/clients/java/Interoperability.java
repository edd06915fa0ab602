import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/** The Java client behind the line protocol of programs/README.md. */
public final class Interoperability {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final Map<String, Admin> ADMINS = new HashMap<>();
    private static final Map<String, KafkaProducer<byte[], byte[]>> TRANSACTIONAL = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = JSON.readTree(line);
            ObjectNode response = JSON.createObjectNode();
            try {
                response.set("result", respond(request));
            } catch (UnsupportedOperationException reason) {
                response.put("unsupported", reason.getMessage());
            } catch (Exception error) {
                response.set("error", describe(error));
            }
            emit(response);
        }
        ADMINS.values().forEach(Admin::close);
        TRANSACTIONAL.values().forEach(each -> each.close(Duration.ZERO));
    }

    private static void emit(JsonNode line) {
        OUT.println(line);
        OUT.flush();
    }

    private static void announce(String event) {
        emit(JSON.createObjectNode().put("event", event));
    }

    private static ObjectNode describe(Throwable error) {
        Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
        ObjectNode described = JSON.createObjectNode().put("type", cause.getClass().getSimpleName());
        Errors known = Errors.forException(cause);
        if (known == Errors.UNKNOWN_SERVER_ERROR) {
            described.putNull("code");
        } else {
            described.put("code", known.code());
        }
        return described.put("message", String.valueOf(cause.getMessage()));
    }

    private static JsonNode respond(JsonNode request) throws Exception {
        return switch (request.get("op").asText()) {
            case "hello" -> hello();
            case "create_topic" -> createTopic(request);
            case "produce" -> produce(request);
            case "stream" -> stream(request);
            case "consume" -> consume(request);
            case "transact" -> transact(request);
            case "list_topics" -> listTopics(request);
            case "describe_topic" -> describeTopic(request);
            case "describe_configs" -> describeConfigs(request);
            case "alter_config" -> alterConfig(request);
            case "create_partitions" -> createPartitions(request);
            case "delete_topic" -> deleteTopic(request);
            case "delete_records" -> deleteRecords(request);
            case "list_offsets" -> listOffsets(request);
            case "describe_cluster" -> describeCluster(request);
            default -> throw new UnsupportedOperationException("no such operation");
        };
    }

    private static Admin admin(JsonNode request) {
        return ADMINS.computeIfAbsent(request.get("bootstrap").asText(), bootstrap -> {
            Map<String, Object> settings = security(request);
            settings.put("bootstrap.servers", bootstrap);
            return Admin.create(settings);
        });
    }

    /** The settings for the request's `security`: PEM files, and a user of SASL. */
    private static Map<String, Object> security(JsonNode request) {
        Map<String, Object> settings = new HashMap<>();
        JsonNode security = request.get("security");
        if (security == null || security.isNull()) {
            return settings;
        }
        settings.put("security.protocol", security.get("protocol").asText());
        if (security.hasNonNull("ca")) {
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", security.get("ca").asText());
        }
        if (security.hasNonNull("keystore")) {
            settings.put("ssl.keystore.type", "PEM");
            settings.put("ssl.keystore.location", security.get("keystore").asText());
        }
        if (security.hasNonNull("mechanism")) {
            String mechanism = security.get("mechanism").asText();
            String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
            settings.put("sasl.mechanism", mechanism);
            settings.put("sasl.jaas.config", "org.apache.kafka.common.security." + module + " required username=\""
                    + security.get("username").asText() + "\" password=\"" + security.get("password").asText() + "\";");
        }
        return settings;
    }

    private static ObjectNode hello() {
        ObjectNode result = JSON.createObjectNode().put("client", "kafka-clients " + AppInfoParser.getVersion());
        result.set("codecs", JSON.valueToTree(List.of("none", "gzip", "snappy", "lz4", "zstd")));
        result.putObject("lacks");
        return result;
    }

    private static ObjectNode createTopic(JsonNode request) throws Exception {
        Map<String, String> config = new HashMap<>();
        request.get("config").properties().forEach(each -> config.put(each.getKey(), each.getValue().asText()));
        var topic = new NewTopic(request.get("topic").asText(), request.get("partitions").asInt(), (short) 1);
        admin(request).createTopics(List.of(topic.configs(config))).all().get();
        return JSON.createObjectNode();
    }

    private static byte[] decode(JsonNode text) {
        return text == null || text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String encode(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    private static KafkaProducer<byte[], byte[]> producer(JsonNode request, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.putAll(security(request));
        all.put("bootstrap.servers", request.get("bootstrap").asText());
        // Far above the broker's limit, so that it is the broker who refuses a record.
        all.put("max.request.size", 10_000_000);
        all.put("delivery.timeout.ms", 90_000);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static ObjectNode produce(JsonNode request) {
        Map<String, Object> settings = Map.of(
                "compression.type", request.get("codec").asText(),
                "acks", request.get("acks").asText(),
                "enable.idempotence", request.get("idempotent").asBoolean(),
                // An unknown topic would otherwise be waited for during a minute.
                "max.block.ms", 5_000,
                "linger.ms", 5);
        ObjectNode result = JSON.createObjectNode();
        ArrayNode results = result.putArray("results");
        try (var producer = producer(request, settings)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode each : request.get("records")) {
                var record = new ProducerRecord<>(
                        request.get("topic").asText(),
                        each.get("partition").isNull() ? null : each.get("partition").asInt(),
                        each.get("timestamp").isNull() ? null : each.get("timestamp").asLong(),
                        decode(each.get("key")),
                        decode(each.get("value")));
                for (JsonNode header : each.get("headers")) {
                    record.headers().add(header.get(0).asText(), decode(header.get(1)));
                }
                sent.add(producer.send(record));
            }
            producer.flush();
            for (Future<RecordMetadata> each : sent) {
                ObjectNode outcome = results.addObject();
                try {
                    RecordMetadata metadata = each.get();
                    if (metadata.hasOffset()) {
                        outcome.put("offset", metadata.offset());
                    } else {
                        outcome.putNull("offset");
                    }
                } catch (Exception error) {
                    outcome.set("error", describe(error));
                }
            }
        }
        return result;
    }

    private static ObjectNode stream(JsonNode request) throws Exception {
        int count = request.get("count").asInt();
        int announceAfter = request.get("announce_after").asInt();
        long intervalNanos = request.get("interval_us").asLong() * 1000;
        AtomicInteger acked = new AtomicInteger();
        ObjectNode result = JSON.createObjectNode();
        try (var producer = producer(request, Map.of("linger.ms", 0, "batch.size", 200, "retry.backoff.ms", 50))) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                byte[] value = String.format("record-%06d", i).getBytes(StandardCharsets.UTF_8);
                sent.add(producer.send(
                        new ProducerRecord<>(
                                request.get("topic").asText(), request.get("partition").asInt(), null, value),
                        (metadata, error) -> {
                            if (error == null && acked.incrementAndGet() == announceAfter) {
                                announce("progress");
                            }
                        }));
                if (intervalNanos > 0) {
                    Thread.sleep(intervalNanos / 1_000_000, (int) (intervalNanos % 1_000_000));
                }
            }
            ArrayNode offsets = result.putArray("offsets");
            for (Future<RecordMetadata> each : sent) {
                offsets.add(each.get().offset());
            }
        }
        return result;
    }

    private static ObjectNode consume(JsonNode request) {
        var settings = new Properties();
        settings.putAll(security(request));
        settings.put("bootstrap.servers", request.get("bootstrap").asText());
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", request.get("reset").asText());
        settings.put("isolation.level", request.get("isolation").asText());
        settings.put("fetch.max.wait.ms", request.get("max_wait_ms").asInt());
        settings.put("request.timeout.ms", 60_000 + request.get("max_wait_ms").asInt());
        settings.put("default.api.timeout.ms", 60_000 + request.get("max_wait_ms").asInt());
        int count = request.get("count").asInt();
        settings.put("max.poll.records", count);
        var place = new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
        ObjectNode result = JSON.createObjectNode();
        ArrayNode records = result.putArray("records");
        try (var consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(place));
            JsonNode start = request.get("start");
            if (start.isObject()) {
                OffsetAndTimestamp found =
                        consumer.offsetsForTimes(Map.of(place, start.get("timestamp").asLong())).get(place);
                consumer.seek(place, found.offset());
            } else if (start.isNumber()) {
                consumer.seek(place, start.asLong());
            } else if (start.asText().equals("latest")) {
                consumer.seekToEnd(List.of(place));
                consumer.position(place);
            } else {
                consumer.seekToBeginning(List.of(place));
            }
            announce("waiting");
            long deadline = System.nanoTime() + request.get("timeout_ms").asLong() * 1_000_000;
            while (records.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(250))) {
                    ObjectNode record = records.addObject()
                            .put("offset", each.offset())
                            .put("key", encode(each.key()))
                            .put("value", encode(each.value()))
                            .put("timestamp", each.timestamp());
                    ArrayNode headers = record.putArray("headers");
                    for (Header header : each.headers()) {
                        headers.addArray().add(header.key()).add(encode(header.value()));
                    }
                }
            }
        }
        return result;
    }

    private static ObjectNode transact(JsonNode request) {
        String name = request.get("producer").asText();
        if (!TRANSACTIONAL.containsKey(name)) {
            String transactionalId = request.get("transactional_id").asText();
            TRANSACTIONAL.put(name, producer(request, Map.of("transactional.id", transactionalId)));
            TRANSACTIONAL.get(name).initTransactions();
        }
        KafkaProducer<byte[], byte[]> producer = TRANSACTIONAL.get(name);
        if (request.get("begin").asBoolean()) {
            producer.beginTransaction();
        }
        for (JsonNode each : request.get("records")) {
            producer.send(new ProducerRecord<>(
                    request.get("topic").asText(),
                    each.get("partition").asInt(),
                    decode(each.get("key")),
                    decode(each.get("value"))));
        }
        producer.flush();
        if (!request.get("offsets").isNull()) {
            JsonNode row = request.get("offsets");
            var place = new TopicPartition(row.get(1).asText(), row.get(2).asInt());
            producer.sendOffsetsToTransaction(
                    Map.of(place, new OffsetAndMetadata(row.get(3).asLong())),
                    new ConsumerGroupMetadata(row.get(0).asText()));
        }
        switch (request.get("end").asText()) {
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            default -> {}
        }
        return JSON.createObjectNode();
    }

    private static ObjectNode listTopics(JsonNode request) throws Exception {
        ObjectNode result = JSON.createObjectNode();
        result.set("topics", JSON.valueToTree(admin(request).listTopics().names().get()));
        return result;
    }

    private static ObjectNode describeTopic(JsonNode request) throws Exception {
        String topic = request.get("topic").asText();
        ObjectNode result = JSON.createObjectNode();
        ArrayNode partitions = result.putArray("partitions");
        var described = admin(request).describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        for (TopicPartitionInfo each : described.partitions()) {
            ObjectNode partition =
                    partitions.addObject().put("id", each.partition()).put("leader", each.leader().id());
            ArrayNode replicas = partition.putArray("replicas");
            each.replicas().forEach(node -> replicas.add(node.id()));
        }
        return result;
    }

    private static ConfigResource topicResource(JsonNode request) {
        return new ConfigResource(ConfigResource.Type.TOPIC, request.get("topic").asText());
    }

    private static ObjectNode describeConfigs(JsonNode request) throws Exception {
        ConfigResource resource = topicResource(request);
        ObjectNode result = JSON.createObjectNode();
        ObjectNode configs = result.putObject("configs");
        admin(request).describeConfigs(List.of(resource)).all().get().get(resource).entries()
                .forEach(entry -> configs.put(entry.name(), entry.value()));
        return result;
    }

    private static ObjectNode alterConfig(JsonNode request) throws Exception {
        var entry = new ConfigEntry(request.get("name").asText(), request.get("value").asText());
        var change = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
        admin(request).incrementalAlterConfigs(Map.of(topicResource(request), List.of(change))).all().get();
        return JSON.createObjectNode();
    }

    private static ObjectNode createPartitions(JsonNode request) throws Exception {
        NewPartitions total = NewPartitions.increaseTo(request.get("count").asInt());
        admin(request).createPartitions(Map.of(request.get("topic").asText(), total)).all().get();
        return JSON.createObjectNode();
    }

    private static ObjectNode deleteTopic(JsonNode request) throws Exception {
        admin(request).deleteTopics(Set.of(request.get("topic").asText())).all().get();
        return JSON.createObjectNode();
    }

    private static ObjectNode deleteRecords(JsonNode request) throws Exception {
        var place = new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
        var before = RecordsToDelete.beforeOffset(request.get("offset").asLong());
        var deleted = admin(request).deleteRecords(Map.of(place, before)).lowWatermarks().get(place).get();
        return JSON.createObjectNode().put("low_watermark", deleted.lowWatermark());
    }

    private static ObjectNode listOffsets(JsonNode request) throws Exception {
        var place = new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
        JsonNode at = request.get("at");
        OffsetSpec spec = at.isNumber()
                ? OffsetSpec.forTimestamp(at.asLong())
                : switch (at.asText()) {
                    case "earliest" -> OffsetSpec.earliest();
                    case "latest" -> OffsetSpec.latest();
                    default -> OffsetSpec.maxTimestamp();
                };
        var found = admin(request).listOffsets(Map.of(place, spec)).partitionResult(place).get();
        return JSON.createObjectNode().put("offset", found.offset());
    }

    private static ObjectNode describeCluster(JsonNode request) throws Exception {
        DescribeClusterResult described = admin(request).describeCluster();
        ObjectNode result = JSON.createObjectNode().put("cluster_id", described.clusterId().get());
        result.put("controller", Optional.ofNullable(described.controller().get()).map(Node::id).orElse(-1));
        ArrayNode brokers = result.putArray("brokers");
        for (Node node : described.nodes().get()) {
            brokers.addObject().put("id", node.id()).put("host", node.host()).put("port", node.port());
        }
        return result;
    }
}
