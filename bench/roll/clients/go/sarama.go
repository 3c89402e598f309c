package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

type handler struct{ events *events }

func (h handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (h handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		h.events.noteReceived(message.Value)
		session.MarkMessage(message, "")
	}
	return nil
}

func withSarama(e *events, bootstrap, topic, group, rack string) error {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0 // reading from followers is off by default: sarama's default version is 2.1
	config.RackID = rack
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Return.Errors = true
	config.Producer.Return.Successes = true
	brokers := strings.Split(bootstrap, ",")
	producer, err := sarama.NewAsyncProducer(brokers, config)
	if err != nil {
		return err
	}
	consumer, err := sarama.NewConsumerGroup(brokers, group, config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for ctx.Err() == nil {
			if err := consumer.Consume(ctx, []string{topic}, handler{e}); err != nil && ctx.Err() == nil {
				e.noteError(err)
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	go func() {
		for err := range consumer.Errors() {
			e.noteError(err)
		}
	}()
	go func() {
		for message := range producer.Successes() {
			e.noteAcknowledged(message.Metadata.(int))
		}
		e.noteFlushed()
	}()
	go func() {
		for failed := range producer.Errors() {
			e.noteError(failed.Err)
		}
	}()
	go func() {
		for number := 0; ; number++ {
			select {
			case <-e.stopping:
				producer.AsyncClose()
				return
			case <-time.After(pause):
			}
			value := sarama.StringEncoder(strconv.Itoa(number))
			producer.Input() <- &sarama.ProducerMessage{Topic: topic, Value: value, Metadata: number}
		}
	}()
	e.wait()
	cancel()
	if err := consumer.Close(); err != nil && !errors.Is(err, sarama.ErrClosedConsumerGroup) {
		e.noteError(err)
	}
	return nil
}
