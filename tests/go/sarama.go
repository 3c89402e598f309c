package main

import (
	"context"
	"crypto/tls"
	"errors"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type saramaClient struct {
	to       connection
	security *tls.Config
}

// scramClient makes a client of the xdg-go library one of sarama's.
type scramClient struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (s *scramClient) Begin(user, password, authorization string) error {
	client, err := s.hash.NewClient(user, password, authorization)
	if err == nil {
		s.ClientConversation = client.NewConversation()
	}
	return err
}

type token string

func (t token) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

func (s saramaClient) config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Net.TLS.Enable, config.Net.TLS.Config = true, s.security
	config.Metadata.Retry.Max = 1
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Return.Errors = true
	if s.to.Mechanism == "CERTIFICATE" {
		return config
	}
	login := &config.Net.SASL
	login.Enable, login.User, login.Password = true, s.to.User, s.to.Password
	login.Mechanism = sarama.SASLMechanism(s.to.Mechanism)
	login.TokenProvider = token(s.to.Token)
	login.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
		if s.to.Mechanism == "SCRAM-SHA-256" {
			return &scramClient{hash: scram.SHA256}
		}
		return &scramClient{hash: scram.SHA512}
	}
	return config
}

func (s saramaClient) produce(_ context.Context, topic string, values []string) error {
	config := s.config()
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Transaction.ID = topic
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer([]string{s.to.Bootstrap}, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	for _, value := range values {
		message := &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)}
		if _, _, err := producer.SendMessage(message); err != nil {
			return err
		}
	}
	return producer.CommitTxn()
}

// member collects values until it has enough, then ends its session.
type member struct {
	count  int
	values []string
	done   context.CancelFunc
}

func (m *member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case <-session.Context().Done():
			return nil
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			m.values = append(m.values, string(message.Value))
			session.MarkMessage(message, "")
			if len(m.values) == m.count {
				session.Commit()
				m.done()
				return nil
			}
		}
	}
}

func (s saramaClient) consume(ctx context.Context, topic string, count int) ([]string, error) {
	group, err := sarama.NewConsumerGroup([]string{s.to.Bootstrap}, topic, s.config())
	if err != nil {
		return nil, err
	}
	defer group.Close()
	ctx, done := context.WithCancel(ctx)
	defer done()
	found := &member{count: count, done: done}
	failed := make(chan error, 1)
	go func() {
		for err := range group.Errors() {
			select {
			case failed <- err:
				done()
			default:
			}
		}
	}()
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{topic}, found); err != nil {
			return found.values, err
		}
	}
	if len(found.values) < count {
		select {
		case err := <-failed:
			return found.values, err
		default:
			return found.values, errors.New("too few records within the time limit")
		}
	}
	return found.values, nil
}
