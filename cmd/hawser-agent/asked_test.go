package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// echoes sends back what it reads from c.
func echoes(c net.Conn) {
	defer c.Close()
	_, _ = io.Copy(c, c)
}

// pong checks that c is connected to an echo.
func pong(t *testing.T, c net.Conn) {
	t.Helper()
	got := make([]byte, 4)
	if _, err := io.WriteString(c, "ping"); err != nil {
		t.Error(err)
	} else if _, err = io.ReadFull(c, got); err != nil {
		t.Error(err)
	}
}

// TestQuestionLosesNothing: an agent that asks a hub about its certificate keeps its session there, the
// streams in it, and the dials into the node.
func TestQuestionLosesNothing(t *testing.T) {
	t.Parallel()
	var x tunneltest.Exchange
	moved, said := make(chan struct{}), make(chan struct{})
	hub, err := server.New(server.Config{
		Listeners: []tunnel.Listener{x.Listen("hub:1")},
		Identify:  func(tunnel.Peer) (string, error) { return "node-1", nil },
		API:       func(_ context.Context, c net.Conn) error { echoes(c); return nil },
		Log:       slog.New(slog.NewTextHandler(&until{text: "the node moves to another session", said: moved}, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	kubelet := memnet.NewHandoff(nodeAddr("node-1"), kubeletBacklog)
	link, err := agent.NewGroup(agent.Config{
		Servers: []string{"hub:1"}, NodeName: "node-1", Transport: x.Transport(), Kubelet: kubelet,
		Log: slog.New(slog.NewTextHandler(&until{text: "about the node's certificate", said: said}, nil)),
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	together(t, hub.Run, link.Run, func(ctx context.Context) error {
		context.AfterFunc(ctx, func() { _ = kubelet.Close() })
		var wg sync.WaitGroup
		defer wg.Wait()
		for c, aerr := kubelet.Accept(); aerr == nil; c, aerr = kubelet.Accept() {
			wg.Go(func() { echoes(c) })
		}
		return nil
	})
	if err = hub.Wait(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	before := hub.Sessions()[0].ID
	out, err := link.DialContext(t.Context(), "tcp", apiTarget)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for asked := false; !asked; {
		select {
		case <-said:
			asked = true
		case <-moved:
			t.Fatal("the node has moved to another session")
		case <-time.After(10 * time.Millisecond):
		}
		link.Answered(http.StatusUnauthorized)
		in, derr := hub.DialContext(t.Context(), "tcp", "node-1:10250")
		if derr != nil {
			t.Fatal(derr)
		}
		pong(t, in)
		_ = in.Close()
	}
	pong(t, out)
	if all := hub.Sessions(); len(all) != 1 || all[0].ID != before {
		t.Errorf("sessions: %+v, want %d", all, before)
	}
}
