// Command interoperability puts franz-go behind the line protocol of programs/README.md.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// What a broker takes by default; franz-go fills batches up to this.
	maxBatchBytes = 1_048_588
	// Far above that, so that it is the broker who refuses a record.
	maxMessageBytes = 10_000_000
)

type object = map[string]any

type wireRecord struct {
	Offset    int64        `json:"offset"`
	Partition *int32       `json:"partition,omitempty"`
	Key       *string      `json:"key"`
	Value     *string      `json:"value"`
	Headers   [][2]*string `json:"headers"`
	Timestamp *int64       `json:"timestamp"`
}

type security struct {
	Protocol    string `json:"protocol"`
	Ca          string `json:"ca"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

type request struct {
	Op            string            `json:"op"`
	Bootstrap     string            `json:"bootstrap"`
	Security      *security         `json:"security"`
	Topic         string            `json:"topic"`
	Partitions    int32             `json:"partitions"`
	Partition     int32             `json:"partition"`
	Config        map[string]string `json:"config"`
	Codec         string            `json:"codec"`
	Acks          any               `json:"acks"`
	Idempotent    bool              `json:"idempotent"`
	Records       []wireRecord      `json:"records"`
	Count         int               `json:"count"`
	IntervalUs    int64             `json:"interval_us"`
	AnnounceAfter int64             `json:"announce_after"`
	Start         any               `json:"start"`
	Reset         string            `json:"reset"`
	MaxWaitMs     int64             `json:"max_wait_ms"`
	TimeoutMs     int64             `json:"timeout_ms"`
	Name          string            `json:"name"`
	Value         string            `json:"value"`
	Offset        int64             `json:"offset"`
	At            any               `json:"at"`
	Isolation     string            `json:"isolation"`
	Producer      string            `json:"producer"`
	Transactional string            `json:"transactional_id"`
	Begin         bool              `json:"begin"`
	End           string            `json:"end"`
	Offsets       []any             `json:"offsets"`
}

var (
	out           = json.NewEncoder(os.Stdout)
	admins        = map[string]*kadm.Client{}
	transactional = map[string]*kgo.Client{}
)

// What the client has no way to do, and why.
type unsupported string

func (reason unsupported) Error() string { return string(reason) }

func emit(line object) {
	if err := out.Encode(line); err != nil {
		panic(err)
	}
}

func describe(err error) object {
	var known *kerr.Error
	if errors.As(err, &known) {
		return object{"type": known.Message, "code": known.Code, "message": err.Error()}
	}
	return object{"type": fmt.Sprintf("%T", err), "code": nil, "message": err.Error()}
}

func encode(data []byte) *string {
	if data == nil {
		return nil
	}
	text := base64.StdEncoding.EncodeToString(data)
	return &text
}

func decode(text *string) []byte {
	if text == nil {
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(*text)
	if err != nil {
		panic(err)
	}
	return data
}

// The options for the request's security: PEM files.
func (r *request) connection() ([]kgo.Opt, error) {
	options := []kgo.Opt{kgo.SeedBrokers(r.Bootstrap)}
	if r.Security == nil || r.Security.Ca == "" {
		return options, nil
	}
	authority, err := os.ReadFile(r.Security.Ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authority)
	if r.Security.Certificate != "" {
		own, err := tls.LoadX509KeyPair(r.Security.Certificate, r.Security.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return append(options, kgo.DialTLSConfig(config)), nil
}

func admin(r *request) (*kadm.Client, error) {
	if present, ok := admins[r.Bootstrap]; ok {
		return present, nil
	}
	options, err := r.connection()
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(append(options, kgo.MetadataMinAge(10*time.Millisecond))...)
	if err != nil {
		return nil, err
	}
	admins[r.Bootstrap] = kadm.NewClient(client)
	return admins[r.Bootstrap], nil
}

func producer(r *request, options ...kgo.Opt) (*kgo.Client, error) {
	connection, err := r.connection()
	if err != nil {
		return nil, err
	}
	options = append(append(options, connection...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.AllowAutoTopicCreation(),
	)
	return kgo.NewClient(options...)
}

func hello() object {
	version := "unknown"
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			if module.Path == "github.com/twmb/franz-go" {
				version = module.Version
			}
		}
	}
	return object{
		"client": "franz-go " + version,
		"codecs": []string{"none", "gzip", "snappy", "lz4", "zstd"},
		"lacks":  object{},
	}
}

func createTopic(ctx context.Context, r *request) (object, error) {
	client, err := admin(r)
	if err != nil {
		return nil, err
	}
	configs := map[string]*string{}
	for name, value := range r.Config {
		configs[name] = &value
	}
	created, err := client.CreateTopic(ctx, r.Partitions, 1, configs, r.Topic)
	if err != nil {
		return nil, err
	}
	return object{}, created.Err
}

func produce(ctx context.Context, r *request) (object, error) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	options := []kgo.Opt{
		kgo.ProducerBatchCompression(codecs[r.Codec]),
		kgo.ProducerLinger(5 * time.Millisecond),
		// An unknown topic is a result, not something to wait for.
		kgo.UnknownTopicRetries(2),
	}
	switch r.Acks {
	case "all":
		options = append(options, kgo.RequiredAcks(kgo.AllISRAcks()))
	case 1.0:
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()))
	default:
		options = append(options, kgo.RequiredAcks(kgo.NoAck()))
	}
	batchBytes := int32(maxBatchBytes)
	for _, each := range r.Records {
		if len(decode(each.Value)) > maxBatchBytes {
			batchBytes = maxMessageBytes
		}
	}
	options = append(options, kgo.ProducerBatchMaxBytes(batchBytes))
	if !r.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := producer(r, options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	results := make([]object, len(r.Records))
	for i, each := range r.Records {
		record := &kgo.Record{Topic: r.Topic, Key: decode(each.Key), Value: decode(each.Value)}
		if each.Partition != nil {
			record.Partition = *each.Partition
		}
		if each.Timestamp != nil {
			record.Timestamp = time.UnixMilli(*each.Timestamp)
		}
		for _, header := range each.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: *header[0], Value: decode(header[1])})
		}
		client.Produce(ctx, record, func(delivered *kgo.Record, err error) {
			switch {
			case err != nil:
				results[i] = object{"error": describe(err)}
			case r.Acks == 0.0:
				results[i] = object{"offset": nil}
			default:
				results[i] = object{"offset": delivered.Offset}
			}
		})
	}
	return object{"results": results}, client.Flush(ctx)
}

func stream(ctx context.Context, r *request) (object, error) {
	// Only here: franz-go counts the timeout from a record's timestamp, and `produce` sets old ones.
	// A restarting broker may not know its topics yet, so an unknown topic is waited for as long.
	client, err := producer(
		r, kgo.ProducerLinger(0), kgo.RecordDeliveryTimeout(90*time.Second), kgo.UnknownTopicRetries(-1),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	offsets := make([]int64, r.Count)
	var acked atomic.Int64
	var failed atomic.Value
	for i := range r.Count {
		record := &kgo.Record{Topic: r.Topic, Partition: r.Partition, Value: fmt.Appendf(nil, "record-%06d", i)}
		client.Produce(ctx, record, func(delivered *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, err)
				return
			}
			offsets[i] = delivered.Offset
			if acked.Add(1) == r.AnnounceAfter {
				emit(object{"event": "progress"})
			}
		})
		if r.IntervalUs > 0 {
			time.Sleep(time.Duration(r.IntervalUs) * time.Microsecond)
		}
	}
	if err := client.Flush(ctx); err != nil {
		return nil, err
	}
	if err, ok := failed.Load().(error); ok {
		return nil, err
	}
	return object{"offsets": offsets}, nil
}

func consume(ctx context.Context, r *request) (object, error) {
	start := kgo.NewOffset()
	switch at := r.Start.(type) {
	case float64:
		start = start.At(int64(at))
	case map[string]any:
		start = start.AfterMilli(int64(at["timestamp"].(float64)))
	case string:
		if at == "latest" {
			// Resolve the end first: the client itself would resolve it only after "waiting" was said.
			client, err := admin(r)
			if err != nil {
				return nil, err
			}
			ends, err := client.ListEndOffsets(ctx, r.Topic)
			if err != nil {
				return nil, err
			}
			end, _ := ends.Lookup(r.Topic, r.Partition)
			start = start.At(end.Offset)
		} else {
			start = start.AtStart()
		}
	}
	reset := kgo.NewOffset().AtStart()
	if r.Reset == "none" {
		reset = kgo.NoResetOffset()
	}
	isolation := kgo.ReadUncommitted()
	if r.Isolation == "read_committed" {
		isolation = kgo.ReadCommitted()
	}
	options, err := r.connection()
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(append(options,
		kgo.FetchIsolationLevel(isolation),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.Topic: {r.Partition: start}}),
		kgo.ConsumeResetOffset(reset),
		kgo.FetchMaxWait(time.Duration(r.MaxWaitMs)*time.Millisecond),
	)...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	emit(object{"event": "waiting"})
	records := []wireRecord{}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.TimeoutMs)*time.Millisecond)
	defer cancel()
	for len(records) < r.Count && ctx.Err() == nil {
		fetches := client.PollRecords(ctx, r.Count-len(records))
		for _, failure := range fetches.Errors() {
			if ctx.Err() == nil {
				return nil, failure.Err
			}
		}
		fetches.EachRecord(func(each *kgo.Record) {
			timestamp := each.Timestamp.UnixMilli()
			headers := [][2]*string{}
			for _, header := range each.Headers {
				headers = append(headers, [2]*string{&header.Key, encode(header.Value)})
			}
			records = append(records, wireRecord{
				Offset: each.Offset, Key: encode(each.Key), Value: encode(each.Value), Headers: headers,
				Timestamp: &timestamp,
			})
		})
	}
	return object{"records": records}, nil
}

func transact(ctx context.Context, r *request) (object, error) {
	if r.Offsets != nil {
		return nil, unsupported("franz-go sends offsets in a transaction only as a member of a group")
	}
	client, ok := transactional[r.Producer]
	if !ok {
		made, err := producer(r, kgo.TransactionalID(r.Transactional))
		if err != nil {
			return nil, err
		}
		client = made
		transactional[r.Producer] = client
	}
	if r.Begin {
		// The client asks for its producer id late; a successor must fence its predecessor by being there.
		if _, _, err := client.ProducerID(ctx); err != nil {
			return nil, err
		}
		if err := client.BeginTransaction(); err != nil {
			return nil, err
		}
	}
	for _, each := range r.Records {
		record := &kgo.Record{
			Topic: r.Topic, Partition: *each.Partition, Key: decode(each.Key), Value: decode(each.Value),
		}
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			return nil, err
		}
	}
	switch r.End {
	case "commit":
		return object{}, client.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		return object{}, client.EndTransaction(ctx, kgo.TryAbort)
	}
	return object{}, nil
}

func administer(ctx context.Context, r *request) (object, error) {
	client, err := admin(r)
	if err != nil {
		return nil, err
	}
	switch r.Op {
	case "list_topics":
		topics, err := client.ListTopicsWithInternal(ctx)
		return object{"topics": topics.Names()}, err
	case "describe_topic":
		topics, err := client.ListTopics(ctx, r.Topic)
		if err != nil {
			return nil, err
		}
		partitions := []object{}
		for _, each := range topics[r.Topic].Partitions.Sorted() {
			partitions = append(partitions, object{"id": each.Partition, "leader": each.Leader, "replicas": each.Replicas})
		}
		return object{"partitions": partitions}, topics[r.Topic].Err
	case "describe_configs":
		described, err := client.DescribeTopicConfigs(ctx, r.Topic)
		if err != nil {
			return nil, err
		}
		configs := object{}
		for _, each := range described[0].Configs {
			configs[each.Key] = each.Value
		}
		return object{"configs": configs}, described[0].Err
	case "alter_config":
		change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: r.Name, Value: &r.Value}}
		altered, err := client.AlterTopicConfigs(ctx, change, r.Topic)
		if err != nil {
			return nil, err
		}
		return object{}, altered[0].Err
	case "create_partitions":
		created, err := client.UpdatePartitions(ctx, r.Count, r.Topic)
		if err != nil {
			return nil, err
		}
		return object{}, created[r.Topic].Err
	case "delete_topic":
		deleted, err := client.DeleteTopics(ctx, r.Topic)
		if err != nil {
			return nil, err
		}
		return object{}, deleted[r.Topic].Err
	case "delete_records":
		offsets := kadm.Offsets{}
		offsets.Add(kadm.Offset{Topic: r.Topic, Partition: r.Partition, At: r.Offset})
		deleted, err := client.DeleteRecords(ctx, offsets)
		if err != nil {
			return nil, err
		}
		one, _ := deleted.Lookup(r.Topic, r.Partition)
		return object{"low_watermark": one.LowWatermark}, one.Err
	case "list_offsets":
		var listed kadm.ListedOffsets
		switch at := r.At.(type) {
		case float64:
			listed, err = client.ListOffsetsAfterMilli(ctx, int64(at), r.Topic)
		case string:
			switch at {
			case "earliest":
				listed, err = client.ListStartOffsets(ctx, r.Topic)
			case "latest":
				listed, err = client.ListEndOffsets(ctx, r.Topic)
			default:
				listed, err = client.ListMaxTimestampOffsets(ctx, r.Topic)
			}
		}
		if err != nil {
			return nil, err
		}
		one, _ := listed.Lookup(r.Topic, r.Partition)
		return object{"offset": one.Offset}, one.Err
	default:
		described, err := client.BrokerMetadata(ctx)
		brokers := []object{}
		for _, each := range described.Brokers {
			brokers = append(brokers, object{"id": each.NodeID, "host": each.Host, "port": each.Port})
		}
		return object{"cluster_id": described.Cluster, "controller": described.Controller, "brokers": brokers}, err
	}
}

func respond(ctx context.Context, r *request) (object, error) {
	switch r.Op {
	case "hello":
		return hello(), nil
	case "create_topic":
		return createTopic(ctx, r)
	case "produce":
		return produce(ctx, r)
	case "stream":
		return stream(ctx, r)
	case "consume":
		return consume(ctx, r)
	case "transact":
		return transact(ctx, r)
	default:
		return administer(ctx, r)
	}
}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	decoder := json.NewDecoder(in)
	for {
		var r request
		if err := decoder.Decode(&r); err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		result, err := respond(ctx, &r)
		cancel()
		var reason unsupported
		if errors.As(err, &reason) {
			emit(object{"unsupported": reason.Error()})
		} else if err != nil {
			emit(object{"error": describe(err)})
		} else {
			emit(object{"result": result})
		}
	}
}
