// Command authenticated writes and reads one record with franz-go over a SASL listener.
// Arguments: bootstrap, topic, mechanism, user, password or token.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func mechanism(name, user, secret string) sasl.Mechanism {
	switch name {
	case "PLAIN":
		return plain.Auth{User: user, Pass: secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: secret}.AsSha512Mechanism()
	default:
		return oauth.Auth{Token: secret}.AsMechanism()
	}
}

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.SASL(mechanism(os.Args[3], os.Args[4], os.Args[5])),
		kgo.AllowAutoTopicCreation(),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("from franz-go")}).FirstErr(); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	for _, record := range client.PollFetches(ctx).Records() {
		fmt.Println(string(record.Value))
	}
}
