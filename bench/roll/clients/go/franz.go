package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func withFranz(e *events, bootstrap, topic, group, rack string) error {
	seeds := kgo.SeedBrokers(strings.Split(bootstrap, ",")...)
	producer, err := kgo.NewClient(seeds)
	if err != nil {
		return err
	}
	consumer, err := kgo.NewClient(seeds, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.Rack(rack),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	go func() {
		for {
			fetches := consumer.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			fetches.EachError(func(_ string, _ int32, err error) { e.noteError(err) })
			fetches.EachRecord(func(record *kgo.Record) { e.noteReceived(record.Value) })
		}
	}()
	go func() {
		for number := 0; ; number++ {
			select {
			case <-e.stopping:
				if err := producer.Flush(context.Background()); err != nil {
					e.noteError(err)
				}
				e.noteFlushed()
				return
			case <-time.After(pause):
			}
			record := &kgo.Record{Topic: topic, Value: []byte(strconv.Itoa(number))}
			producer.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
				if err != nil {
					e.noteError(err)
				} else {
					e.noteAcknowledged(number)
				}
			})
		}
	}()
	e.wait()
	producer.Close()
	consumer.Close()
	return nil
}
