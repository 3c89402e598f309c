// Command clients uses Go clients of Kafka:
//
//	clients CLIENT produce CONNECTION TOPIC VALUE...
//	clients CLIENT consume CONNECTION TOPIC COUNT
//	clients flow BOOTSTRAP TOPIC
//	clients schedule BOOTSTRAP TOPIC COUNT RECORD...
//
// CLIENT is franz-go, sarama or kafka-go, and CONNECTION a JSON file. It produces in a transaction if the client has
// them, and consumes as a member of a group, which commits; transaction and group are named like the topic. It writes
// values to standard output, a line each. The last two commands use franz-go without security: see queues.go. The exit
// code is 1, and the error on standard error, if the client fails.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

const limit = 60 * time.Second

type connection struct {
	Bootstrap   string `json:"bootstrap"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

type client interface {
	produce(ctx context.Context, topic string, values []string) error
	consume(ctx context.Context, topic string, count int) ([]string, error)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if len(args) == 3 && args[0] == "flow" {
		return flow(args[1], args[2])
	}
	if len(args) < 5 {
		return errors.New("usage: clients CLIENT produce|consume CONNECTION TOPIC VALUE...|COUNT")
	}
	if args[0] == "schedule" {
		count, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return schedule(ctx, args[1], args[2], count, args[4:])
	}
	text, err := os.ReadFile(args[2])
	if err != nil {
		return err
	}
	var to connection
	if err := json.Unmarshal(text, &to); err != nil {
		return err
	}
	security, err := to.tls()
	if err != nil {
		return err
	}
	var used client
	switch args[0] {
	case "franz-go":
		used = franz{to, security}
	case "sarama":
		used = saramaClient{to, security}
	case "kafka-go":
		used = kafkaGo{to, security}
	default:
		return fmt.Errorf("unknown client %q", args[0])
	}
	if args[1] == "produce" {
		return used.produce(ctx, args[3], args[4:])
	}
	count, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	values, err := used.consume(ctx, args[3], count)
	for _, value := range values {
		fmt.Println(value)
	}
	return err
}

func (c connection) tls() (*tls.Config, error) {
	authorities := x509.NewCertPool()
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, err
	}
	if !authorities.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %q", c.CA)
	}
	config := &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12, ServerName: "localhost"}
	if c.Mechanism == "CERTIFICATE" {
		own, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}
