// How auto chooses.

package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

func TestChoose(t *testing.T) {
	broken := errors.New("broken")
	for _, tc := range []struct {
		name string
		// What each dial of either transport comes to: nil works, broken fails,
		// context.DeadlineExceeded blocks.
		first, second []error
		want          []string // the transports dialed
		took          time.Duration
	}{
		{"first works", []error{nil, nil}, nil, []string{"first", "first"}, 0},
		{"first is dropped", []error{context.DeadlineExceeded}, []error{nil, nil}, []string{"first", "second", "second"}, 3 * time.Second},
		{"first fails", []error{broken}, []error{nil, nil}, []string{"first", "second", "second"}, 0},
		{"both fail", []error{broken, nil}, []error{broken}, []string{"first", "second", "first"}, 0},
		{"second fails later", []error{broken, nil}, []error{nil, broken}, []string{"first", "second", "second", "first"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var dialed []string
				transport := func(name string, outcomes []error) tunnel.Transport {
					return tunnel.Transport{Name: name, Dial: func(ctx context.Context, _ string, _ tunnel.Options) (tunnel.Session, error) {
						dialed = append(dialed, name)
						if len(outcomes) == 0 {
							t.Fatalf("%s is dialed once too often", name)
						}
						err := outcomes[0]
						outcomes = outcomes[1:]
						if errors.Is(err, context.DeadlineExceeded) {
							<-ctx.Done()
						}
						return nil, err
					}}
				}
				auto := choose(transport("first", tc.first), transport("second", tc.second), quicPatience)
				start := time.Now()
				for len(dialed) < len(tc.want) {
					_, _ = auto.Dial(t.Context(), "server:1", tunnel.Options{})
				}
				if !slices.Equal(dialed, tc.want) {
					t.Errorf("dialed %v, want %v", dialed, tc.want)
				}
				if d := time.Since(start); d != tc.took {
					t.Errorf("took %v, want %v", d, tc.took)
				}
			})
		})
	}
}

// When the caller has given up, the second transport is not bothered.
func TestChooseGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	first := tunnel.Transport{Dial: func(ctx context.Context, _ string, _ tunnel.Options) (tunnel.Session, error) {
		cancel()
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}}
	second := tunnel.Transport{Dial: func(context.Context, string, tunnel.Options) (tunnel.Session, error) {
		t.Error("second is dialed")
		return nil, nil
	}}
	if _, err := choose(first, second, quicPatience).Dial(ctx, "server:1", tunnel.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
