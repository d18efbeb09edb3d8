package bench;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.RocksDBConfigSetter;
import org.apache.kafka.streams.state.Stores;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.BloomFilter;
import org.rocksdb.LRUCache;
import org.rocksdb.Options;

/**
 * The same ingest on Kafka Streams: exactly_once_v2, ids in a RocksDB store with a changelog topic.
 *
 * <p>Arguments: BOOTSTRAP INPUT PREFIX APPLICATION_ID FOLDER COMMIT_INTERVAL_MS [results]; with the last, each
 * clean event also gets a result by rule.
 */
public final class Ingest {
  private static final Set<String> NOISE = Set.of("heartbeat", "debug");
  private static final Map<String, String> CATEGORIES =
      Map.of(
          "payment", "payment", "refund", "payment", "order", "order", "cart", "order", "logistics", "order");
  private static final byte[] MARK = {1};
  private static final JsonFactory JSON = new JsonFactory();

  private Ingest() {}

  /** Bloom filters, as Kafka's documentation shows it; one block cache for all partitions. */
  public static final class RocksSettings implements RocksDBConfigSetter {
    private static final LRUCache CACHE = new LRUCache(64L << 20);

    @Override
    public void setConfig(String store, Options options, Map<String, Object> configs) {
      BlockBasedTableConfig table = (BlockBasedTableConfig) options.tableFormatConfig();
      table.setBlockCache(CACHE);
      table.setFilterPolicy(new BloomFilter(10, false));
      options.setTableFormatConfig(table);
    }

    @Override
    public void close(String store, Options options) {
      // The cache is shared and lives as long as the process.
    }
  }

  static final class Decide implements Processor<byte[], byte[], byte[], byte[]> {
    private ProcessorContext<byte[], byte[]> context;
    private KeyValueStore<Bytes, byte[]> seen;
    private String id;
    private String type;
    private final boolean results;

    Decide(boolean given) {
      results = given;
    }

    @Override
    public void init(ProcessorContext<byte[], byte[]> given) {
      context = given;
      seen = given.getStateStore("seen");
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
      if (!read(record.value())) {
        context.forward(record, "dead");
        return;
      }
      // With a logged store the put and the outputs are one transaction: a replay can't meet its own mark.
      byte[] key = id.getBytes(StandardCharsets.UTF_8);
      if (seen.putIfAbsent(Bytes.wrap(key), MARK) != null) {
        return;
      }
      if (NOISE.contains(type)) {
        context.forward(record, "noise");
        return;
      }
      context.forward(record, "clean");
      if (results) {
        context.forward(new Record<>(key, result(), record.timestamp()), "results");
      }
    }

    private byte[] result() {
      ByteArrayOutputStream bytes = new ByteArrayOutputStream(160);
      try (JsonGenerator json = JSON.createGenerator(bytes)) {
        json.writeStartObject();
        json.writeStringField("event_id", id);
        json.writeStringField("event_type", type);
        json.writeStringField("category", CATEGORIES.getOrDefault(type, "other"));
        json.writeNumberField("confidence", 1.0);
        json.writeStringField("tier", "rule");
        json.writeEndObject();
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
      return bytes.toByteArray();
    }

    /** Reads the whole document; false where it isn't valid or lacks a field. */
    private boolean read(byte[] value) {
      id = null;
      type = null;
      if (value == null) {
        return false;
      }
      try (JsonParser parser = JSON.createParser(value)) {
        if (parser.nextToken() != JsonToken.START_OBJECT) {
          return false;
        }
        while (parser.nextToken() == JsonToken.FIELD_NAME) {
          String name = parser.currentName();
          JsonToken token = parser.nextToken();
          if (name.equals("event_id")) {
            id = token == JsonToken.VALUE_STRING ? parser.getText() : null;
          } else if (name.equals("event_type")) {
            type = token == JsonToken.VALUE_STRING ? parser.getText() : null;
          } else {
            parser.skipChildren();
          }
        }
        return parser.nextToken() == null && id != null && type != null;
      } catch (IOException error) {
        return false;
      }
    }
  }

  public static void main(String[] args) throws InterruptedException {
    String bootstrap = args[0];
    String input = args[1];
    String prefix = args[2];
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[3]);
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, Integer.parseInt(args[5]));
    settings.put(StreamsConfig.ROCKSDB_CONFIG_SETTER_CLASS_CONFIG, RocksSettings.class);
    settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
    settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
    settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
    settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 5000);
    settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.CHECK_CRCS_CONFIG), false);
    settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 512 << 10);
    // 100 ms is what Kafka Streams takes itself with exactly_once_v2.
    settings.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 100);
    settings.put(StreamsConfig.producerPrefix(ProducerConfig.BUFFER_MEMORY_CONFIG), 64 << 20);

    Topology topology = new Topology();
    topology.addSource("input", input);
    boolean results = args.length > 6;
    topology.addProcessor("decide", () -> new Decide(results), "input");
    topology.addStateStore(
        Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore("seen"), Serdes.Bytes(), Serdes.ByteArray()),
        "decide");
    topology.addSink("clean", prefix + "clean-events", "decide");
    topology.addSink("noise", prefix + "sink-noise", "decide");
    topology.addSink("dead", prefix + "dead-letter", "decide");
    if (results) {
      topology.addSink("results", prefix + "ai-results", "decide");
    }

    KafkaStreams streams = new KafkaStreams(topology, settings);
    CountDownLatch ended = new CountDownLatch(1);
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  streams.close(java.time.Duration.ofSeconds(15));
                  ended.countDown();
                }));
    streams.start();
    ended.await();
  }
}
