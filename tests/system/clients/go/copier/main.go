// Command copier is franz-go's group transact session as a copier; see tests/system/exactly_once/copiers/README.md.
//
// The session sends the offsets itself, as a part of the end, so `offsets` is no point at which it may die. Groups change
// beside its loop, not in it; so it says before each poll's records that it reads from wherever it was put.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

type object = map[string]any

var (
	out       = json.NewEncoder(os.Stdout)
	arguments = map[string]string{}
	stopped   atomic.Bool
)

// The machine's monotonic clock, which all copiers share.
func now() float64 {
	const clockMonotonic = 1
	var at syscall.Timespec
	_, _, failed := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&at)), 0)
	if failed != 0 {
		panic(failed)
	}
	return float64(at.Nano()) / 1e9
}

func tell(event string, fields object) {
	line := object{"event": event, "at": now()}
	for name, value := range fields {
		line[name] = value
	}
	if err := out.Encode(line); err != nil {
		os.Exit(1)
	}
}

func number(name string) float64 {
	value, err := strconv.ParseFloat(arguments[name], 64)
	if err != nil {
		panic(err)
	}
	return value
}

func die() { os.Exit(137) }

func end(what string, err error) {
	tell("trouble", object{"what": fmt.Sprintf("ends: %s: %v", what, err)})
	os.Exit(3)
}

func newSession() *kgo.GroupTransactSession {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(arguments["bootstrap"], ",")...),
		kgo.TransactionalID(arguments["transactional_id"]),
		kgo.TransactionTimeout(time.Duration(number("timeout_ms"))*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumerGroup(arguments["group"]),
		kgo.ConsumeTopics(arguments["input"]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(3*time.Second),
		kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.MetadataMinAge(100*time.Millisecond),
		kgo.MetadataMaxAge(2*time.Second),
	)
	if err != nil {
		end("no session", err)
	}
	return session
}

type copier struct {
	session  *kgo.GroupTransactSession
	chance   *rand.Rand
	attempts int
}

func (c *copier) copy(records []*kgo.Record, since float64) {
	c.attempts++
	name := fmt.Sprintf("%s.%d", arguments["name"], c.attempts)
	aborts := c.chance.Float64() < number("abort_chance")
	point := ""
	if c.chance.Float64() < number("death_chance") {
		points := []string{"begun", "sending", "sent", "committing"}
		point = points[c.chance.Intn(len(points))]
	}
	dieIf := func(here string) {
		if here == point {
			die()
		}
	}
	rows, nowhere, offsets := [][3]any{}, object{}, object{}
	for _, each := range records {
		partition := strconv.Itoa(int(each.Partition))
		rows = append(rows, [3]any{each.Partition, each.Offset, string(each.Value)})
		nowhere[partition] = nil
		offsets[partition] = each.Offset + 1
	}
	tell("assigned", object{"positions": nowhere})
	tell("begin", object{"transaction": name, "since": since, "records": rows})
	if err := c.session.Begin(); err != nil {
		end("begin", err)
	}
	dieIf("begun")
	for _, each := range records {
		copied := &kgo.Record{
			Topic: arguments["output"], Partition: each.Partition, Value: []byte(name + " " + string(each.Value)),
		}
		c.session.Produce(context.Background(), copied, nil)
	}
	dieIf("sending")
	if err := c.session.Client().Flush(context.Background()); err != nil {
		end("flush", err)
	}
	dieIf("sent")
	tell("offsets", object{"transaction": name, "offsets": offsets})
	if !aborts {
		tell("committing", object{"transaction": name})
		if point == "committing" {
			time.AfterFunc(time.Duration(c.chance.Intn(30))*time.Millisecond, die)
		}
	}
	committed, err := c.session.End(context.Background(), kgo.TransactionEndTry(!aborts))
	if err != nil {
		end("the transaction's end", err)
	}
	if committed {
		tell("committed", object{"transaction": name})
	} else {
		tell("aborted", object{"transaction": name})
	}
}

func main() {
	for _, each := range os.Args[1:] {
		name, value, _ := strings.Cut(each, "=")
		arguments[name] = value
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stopped.Store(true)
	}()
	seed := fnv.New64a()
	_, _ = seed.Write([]byte(arguments["seed"] + " " + arguments["name"]))
	c := copier{session: newSession(), chance: rand.New(rand.NewSource(int64(seed.Sum64())))}
	if _, _, err := c.session.Client().ProducerID(context.Background()); err != nil {
		end("no producer id", err)
	}
	tell("ready", nil)
	for !stopped.Load() {
		since := now()
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		fetches := c.session.PollRecords(ctx, int(number("max_records")))
		cancel()
		if records := fetches.Records(); len(records) > 0 {
			c.copy(records, since)
		}
	}
	c.session.Close()
}
