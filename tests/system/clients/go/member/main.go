// Command member puts franz-go into a group; see group_members/README.md.
package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type options struct {
	Strategy string `json:"strategy"`
	Instance string `json:"instance"`
	Session  int    `json:"session_ms"`
}

var (
	out  = json.NewEncoder(os.Stdout)
	lock sync.Mutex
	held = map[int32]bool{}
)

func tell(line any) {
	lock.Lock()
	defer lock.Unlock()
	_ = out.Encode(line)
}

func change(partitions []int32, has bool) {
	lock.Lock()
	for _, each := range partitions {
		if has {
			held[each] = true
		} else {
			delete(held, each)
		}
	}
	all := []int32{}
	for each := range held {
		all = append(all, each)
	}
	lock.Unlock()
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	tell(map[string]any{"assigned": all})
}

func main() {
	bootstrap, group, topic := os.Args[1], os.Args[2], os.Args[3]
	wanted := options{Session: 10_000}
	if err := json.Unmarshal([]byte(os.Args[4]), &wanted); err != nil {
		panic(err)
	}
	balancers := map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "roundrobin": kgo.RoundRobinBalancer(),
		"cooperative-sticky": kgo.CooperativeStickyBalancer(), "": kgo.CooperativeStickyBalancer(),
	}
	settings := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.Balancers(balancers[wanted.Strategy]), kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.SessionTimeout(time.Duration(wanted.Session) * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, now map[string][]int32) {
			change(now[topic], true)
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, now map[string][]int32) {
			change(now[topic], false)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, now map[string][]int32) {
			change(now[topic], false)
		}),
	}
	if wanted.Instance != "" {
		settings = append(settings, kgo.InstanceID(wanted.Instance))
	}
	client, err := kgo.NewClient(settings...)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	for ctx.Err() == nil {
		fetches := client.PollRecords(ctx, 50)
		fetches.EachRecord(func(each *kgo.Record) {
			tell(map[string]any{"record": []any{each.Partition, each.Offset, string(each.Value)}})
		})
		if fetches.NumRecords() > 0 {
			// If this fails, the next owner of the partition reads these records again.
			_ = client.CommitUncommittedOffsets(ctx)
		}
	}
	client.Close()
}
