package main

import (
	"context"
	"crypto/tls"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type franz struct {
	to       connection
	security *tls.Config
}

func (f franz) open(more ...kgo.Opt) (*kgo.Client, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(f.to.Bootstrap), kgo.DialTLSConfig(f.security), kgo.AllowAutoTopicCreation(),
		kgo.RequestRetries(3),
	}
	switch f.to.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: f.to.User, Pass: f.to.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: f.to.User, Pass: f.to.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: f.to.User, Pass: f.to.Password}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: f.to.Token}.AsMechanism()))
	}
	return kgo.NewClient(append(options, more...)...)
}

func (f franz) produce(ctx context.Context, topic string, values []string) error {
	client, err := f.open(kgo.TransactionalID(topic))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	var records []*kgo.Record
	for _, value := range values {
		records = append(records, &kgo.Record{Topic: topic, Value: []byte(value)})
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TryCommit)
}

func (f franz) consume(ctx context.Context, topic string, count int) ([]string, error) {
	client, err := f.open(
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var values []string
	for len(values) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return values, err
		}
		fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	return values, client.CommitUncommittedOffsets(ctx)
}
