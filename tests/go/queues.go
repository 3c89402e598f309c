package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	keys        = 40
	pause       = 4 * time.Millisecond
	metadataAge = 3 * time.Second
	endLimit    = 60 * time.Second
)

// flow produces to a topic and reads it as a group. It writes what was acknowledged, what failed and what was received
// to standard output, stops to produce at the line "stop" of standard input, and ends with its input.
func flow(bootstrap, topic string) error {
	out := lines{writer: bufio.NewWriter(os.Stdout)}
	producer, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(100*time.Millisecond),
		kgo.MetadataMaxAge(metadataAge), kgo.MetadataMinAge(time.Second), kgo.RecordDeliveryTimeout(20*time.Second),
	)
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.AutoCommitInterval(500*time.Millisecond),
		kgo.MetadataMaxAge(metadataAge), kgo.MetadataMinAge(time.Second),
	)
	if err != nil {
		return err
	}
	defer consumer.Close()
	stopped, ended := make(chan struct{}), make(chan struct{})
	var running sync.WaitGroup
	running.Add(2)
	go func() { defer running.Done(); writeUntil(stopped, producer, &out) }()
	go func() { defer running.Done(); readUntil(ended, consumer, &out) }()
	input := bufio.NewScanner(os.Stdin)
	if input.Scan() {
		close(stopped)
		input.Scan()
	} else {
		close(stopped)
	}
	close(ended)
	running.Wait()
	return nil
}

type lines struct {
	mutex  sync.Mutex
	writer *bufio.Writer
}

func (l *lines) write(format string, arguments ...any) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	fmt.Fprintf(l.writer, format+"\n", arguments...)
	l.writer.Flush()
}

func writeUntil(stopped <-chan struct{}, producer *kgo.Client, out *lines) {
	for number := 0; ; number++ {
		select {
		case <-stopped:
			ctx, cancel := context.WithTimeout(context.Background(), endLimit)
			defer cancel()
			if err := producer.Flush(ctx); err != nil {
				out.write("failed %s", name(err))
			}
			out.write("stopped")
			return
		case <-time.After(pause):
		}
		key := fmt.Sprint(number % keys)
		value := fmt.Sprintf("w/%s/%d", key, number)
		record := &kgo.Record{Key: []byte(key), Value: []byte(value)}
		producer.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				out.write("failed %s", name(err))
				return
			}
			out.write("acknowledged %s", value)
		})
	}
}

func readUntil(ended <-chan struct{}, consumer *kgo.Client, out *lines) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-ended; cancel() }()
	for ctx.Err() == nil {
		fetches := consumer.PollFetches(ctx)
		fetches.EachError(func(_ string, partition int32, err error) {
			if !errors.Is(err, context.Canceled) {
				fmt.Fprintf(os.Stderr, "partition %d: %v\n", partition, err)
			}
		})
		fetches.EachRecord(func(r *kgo.Record) { out.write("record %d %d %s", r.Partition, r.Offset, r.Value) })
	}
}

// name returns the name of a broker's error, else the text of the error in one word.
func name(err error) string {
	var refused *kerr.Error
	if errors.As(err, &refused) {
		return refused.Message
	}
	return strings.ReplaceAll(err.Error(), " ", "-")
}

// schedule produces records given as HEADER/MS/KEY/VALUE, reads as many values as a group, and writes them.
func schedule(ctx context.Context, bootstrap, topic string, count int, records []string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(50*time.Millisecond),
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	var sent []*kgo.Record
	for _, text := range records {
		parts := strings.Split(text, "/")
		record := &kgo.Record{Key: []byte(parts[2]), Value: []byte(parts[3])}
		if parts[0] != "" {
			record.Headers = []kgo.RecordHeader{{Key: parts[0], Value: []byte(parts[1])}}
		}
		sent = append(sent, record)
	}
	if err := client.ProduceSync(ctx, sent...).FirstErr(); err != nil {
		return err
	}
	for found := 0; found < count; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			fmt.Println(string(r.Value))
			found++
		})
	}
	return nil
}
