package socket

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/bench/process"
	"github.com/thaw-dev/thaw/bench/report"
)

// Typing is the processor time of a server per typed word, in microseconds.
type Typing struct {
	Server string    `json:"server"`
	Micros []float64 `json:"cpu_us_per_word"` // one per round
	Median float64   `json:"median_us"`
	Words  int       `json:"words"` // all together
}

const (
	typists   = 32
	wordEvery = 20 * time.Millisecond // of one socket, so that each word comes alone
)

// measureTyping measures thaw and the echo server in turns, on the same sockets throughout.
func measureTyping(ctx context.Context, o *Options) ([]Typing, error) {
	intents := makeIntents(o.Intents)
	thaw, err := o.startThaw(ctx, "typing", intents, 0)
	if err != nil {
		return nil, err
	}
	defer thaw.end()
	echo, err := o.startEcho(ctx)
	if err != nil {
		return nil, err
	}
	defer echo.end()
	servers := []*server{thaw, echo}
	list := make([]Typing, len(servers))
	clients := make([][]*client, len(servers))
	for i, s := range servers {
		list[i].Server = s.name
		clients[i], err = s.dialAll(ctx, typists)
		defer closeAll(clients[i])
		if err != nil {
			return nil, err
		}
	}
	for round := range o.Rounds + 1 { // the first one warms up
		for i, s := range servers {
			before, err := process.CPU(s.process.PID)
			if err != nil {
				return nil, err
			}
			words, err := typeWords(ctx, clients[i], intents, o.Words)
			if err != nil {
				return nil, fmt.Errorf("%s: %w: %s", s.name, err, s.process.Tail())
			}
			after, err := process.CPU(s.process.PID)
			if err != nil {
				return nil, err
			}
			micros := float64((after - before).Microseconds()) / float64(words)
			if round > 0 {
				list[i].Micros = append(list[i].Micros, micros)
				list[i].Words += words
			}
			o.Progress(fmt.Sprintf("typing, round %d of %d: %-5s %6.1f µs a word", round, o.Rounds, s.name, micros))
		}
	}
	for i := range list {
		list[i].Median = report.Quantile(list[i].Micros, 0.5)
	}
	return list, nil
}

// typeWords has all clients type texts until about n words are typed, and returns how many.
func typeWords(ctx context.Context, clients []*client, intents []intent, n int) (int, error) {
	var typed atomic.Int64
	err := forEach(len(clients), len(clients), func(i int) error {
		tick := time.NewTicker(wordEvery)
		defer tick.Stop()
		for k := i; int(typed.Load()) < n; k += len(clients) {
			words, err := clients[i].typeText(ctx, intents[k%len(intents)].text, tick.C)
			typed.Add(int64(words))
			if err != nil {
				return err
			}
		}
		return nil
	})
	return int(typed.Load()), err
}
