// This file terminates pods when the machine shuts down.

package node

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/shutdown"
)

// errShuttingDown is why a node whose machine shuts down is not ready.
var errShuttingDown = errors.New("node is shutting down")

// watchShutdown ends pods when the machine shuts down, until ctx is done. Without phases
// it does nothing.
func (n *Node) watchShutdown(ctx context.Context) error {
	var sum time.Duration
	for _, p := range n.cfg.Shutdown {
		sum += p.Grace
	}
	if sum == 0 {
		return nil
	}
	n.recallShutdown()
	w, err := shutdown.New(shutdown.Config{Delay: sum, Begin: n.shutDown, Cancel: n.resume, Log: n.log})
	if err != nil {
		return err
	}
	w.Run(ctx)
	return nil
}

// shutDown sets the node NotReady and terminates its pods.
func (n *Node) shutDown(ctx context.Context) {
	n.setDown(true)
	n.events.Event(n.ref, corev1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown event")
	times := shutdownTimes{Start: time.Now()}
	n.keepShutdown(times)
	n.pods.ShutDown(ctx, n.cfg.Shutdown)
	times.End = time.Now()
	n.keepShutdown(times)
}

// recallShutdown exports the times that were stored before the boot.
func (n *Node) recallShutdown() {
	last, err := readShutdown(n.cfg.DataDir)
	if err != nil {
		n.log.Warn("it is not known when the machine was shut down last", "err", err)
	}
	n.metrics.shutdown.set(last)
}

// keepShutdown exports t and stores it for after the boot.
func (n *Node) keepShutdown(t shutdownTimes) {
	n.metrics.shutdown.set(t)
	if err := t.write(n.cfg.DataDir); err != nil {
		n.log.Warn("after the boot nobody will know when the machine was shut down", "err", err)
	}
}

// resume undoes shutDown after a shutdown was canceled.
func (n *Node) resume() {
	n.pods.Resume()
	n.setDown(false)
	n.events.Event(n.ref, corev1.EventTypeNormal, "Shutdown", "Shutdown manager detected shutdown cancellation")
}

// setDown records whether the machine shuts down, and requests a status write.
func (n *Node) setDown(down bool) {
	n.down.Store(down)
	select {
	case n.hurry <- struct{}{}:
	default:
	}
}
