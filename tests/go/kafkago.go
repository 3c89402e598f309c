package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// kafkaGo has no transactions and no OAUTHBEARER.
type kafkaGo struct {
	to       connection
	security *tls.Config
}

func (k kafkaGo) mechanism() (sasl.Mechanism, error) {
	switch k.to.Mechanism {
	case "CERTIFICATE":
		return nil, nil
	case "PLAIN":
		return plain.Mechanism{Username: k.to.User, Password: k.to.Password}, nil
	case "SCRAM-SHA-256":
		return scram.Mechanism(scram.SHA256, k.to.User, k.to.Password)
	case "SCRAM-SHA-512":
		return scram.Mechanism(scram.SHA512, k.to.User, k.to.Password)
	}
	return nil, fmt.Errorf("kafka-go has no mechanism %q", k.to.Mechanism)
}

func (k kafkaGo) produce(ctx context.Context, topic string, values []string) error {
	mechanism, err := k.mechanism()
	if err != nil {
		return err
	}
	writer := &kafka.Writer{
		Addr: kafka.TCP(k.to.Bootstrap), Topic: topic, AllowAutoTopicCreation: true, RequiredAcks: kafka.RequireAll,
		BatchTimeout: 10 * time.Millisecond, Transport: &kafka.Transport{TLS: k.security, SASL: mechanism},
	}
	defer writer.Close()
	var messages []kafka.Message
	for _, value := range values {
		messages = append(messages, kafka.Message{Value: []byte(value)})
	}
	return writer.WriteMessages(ctx, messages...)
}

func (k kafkaGo) consume(ctx context.Context, topic string, count int) ([]string, error) {
	mechanism, err := k.mechanism()
	if err != nil {
		return nil, err
	}
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: topic, Brokers: []string{k.to.Bootstrap}, Topics: []string{topic}, StartOffset: kafka.FirstOffset,
		Dialer: k.dialer(mechanism),
	})
	if err != nil {
		return nil, err
	}
	defer group.Close()
	generation, err := group.Next(ctx)
	if err != nil {
		return nil, err
	}
	var values []string
	for _, assigned := range generation.Assignments[topic] {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{k.to.Bootstrap}, Topic: topic, Partition: assigned.ID, Dialer: k.dialer(mechanism),
			MaxWait: 100 * time.Millisecond,
		})
		defer reader.Close()
		if err := reader.SetOffset(assigned.Offset); err != nil {
			return values, err
		}
		for len(values) < count {
			message, err := reader.ReadMessage(ctx)
			if err != nil {
				return values, err
			}
			values = append(values, string(message.Value))
		}
		committed := map[string]map[int]int64{topic: {assigned.ID: int64(len(values))}}
		if err := generation.CommitOffsets(committed); err != nil {
			return values, err
		}
	}
	return values, nil
}

func (k kafkaGo) dialer(mechanism sasl.Mechanism) *kafka.Dialer {
	return &kafka.Dialer{Timeout: 10 * time.Second, TLS: k.security, SASLMechanism: mechanism}
}
