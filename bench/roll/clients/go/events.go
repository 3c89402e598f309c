// franz-go and sarama. See ../__init__.py for arguments and output.
package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"
)

const (
	pause = 20 * time.Millisecond
	limit = 60 * time.Second
)

var numbers = regexp.MustCompile(`[0-9][0-9.:]*`)

// events writes what a client sees, and knows when the client may end. It is used by several goroutines.
type events struct {
	mutex        sync.Mutex
	acknowledged map[int]bool
	received     map[int]bool
	flushed      bool
	// stopping is closed when standard input ends.
	stopping chan struct{}
}

func newEvents() *events {
	e := &events{acknowledged: map[int]bool{}, received: map[int]bool{}, stopping: make(chan struct{})}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(e.stopping)
	}()
	return e
}

func write(kind string, what any) {
	fmt.Printf("%.3f %s %v\n", float64(time.Now().UnixMilli())/1000, kind, what)
}

func (e *events) noteAcknowledged(number int) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.acknowledged[number] = true
	write("acknowledged", number)
}

func (e *events) noteReceived(value []byte) {
	number, err := strconv.Atoi(string(value))
	if err != nil {
		panic(err)
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.received[number] = true
	write("received", number)
}

func (e *events) noteError(err error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	// Errors of one kind count as one, whichever broker or partition they name.
	write("error", fmt.Sprintf("%q", numbers.ReplaceAllString(err.Error(), "N")))
}

func (e *events) noteFlushed() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.flushed = true
}

func (e *events) isComplete() bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if !e.flushed {
		return false
	}
	for number := range e.acknowledged {
		if !e.received[number] {
			return false
		}
	}
	return true
}

// wait returns when all that was acknowledged has been received, or a while after standard input has ended.
func (e *events) wait() {
	<-e.stopping
	for end := time.Now().Add(limit); time.Now().Before(end) && !e.isComplete(); {
		time.Sleep(50 * time.Millisecond)
	}
}

func main() {
	bootstrap, topic, group := os.Args[2], os.Args[3], os.Args[4]
	clients := map[string]func(*events, string, string, string, string) error{"franz-go": withFranz, "sarama": withSarama}
	run, found := clients[os.Args[1]]
	if !found {
		fmt.Fprintf(os.Stderr, "unknown client %q; use franz-go or sarama\n", os.Args[1])
		os.Exit(2)
	}
	if err := run(newEvents(), bootstrap, topic, group, os.Getenv("ROLL_RACK")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
