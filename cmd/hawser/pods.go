// Ending the pods of a cluster that goes down as a whole: containers outlive
// their agent, and nobody would be left to end them.

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/process"
)

const (
	// podGrace is how long containers may take to end.
	podGrace = 2 * time.Second
	// stopPodsTimeout bounds the ending of all of a node's containers.
	stopPodsTimeout = 30 * time.Second
)

// stopPods ends all containers of the nodes below dir, whose agents have ended.
func stopPods(dir string) error {
	nodes, err := filepath.Glob(filepath.Join(dir, "nodes", "*", "runtime"))
	if err != nil {
		return err
	}
	var group errgroup.Group
	for _, data := range nodes {
		group.Go(func() error {
			if err := stopContainers(data); err != nil {
				return fmt.Errorf("stop the pods of %s: %w", filepath.Base(filepath.Dir(data)), err)
			}
			return nil
		})
	}
	return group.Wait()
}

// stopContainers ends the containers in the data directory of a runtime.
func stopContainers(data string) error {
	if _, err := os.Stat(data); err != nil {
		return nil
	}
	rt, err := process.New(process.Config{DataDir: data, Isolation: process.None}) // it starts nothing
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopPodsTimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(ctx)
	group.Go(func() error { return rt.Run(running) })
	group.Go(func() error {
		defer stop()
		containers, err := rt.Containers(ctx)
		if err != nil {
			return err
		}
		var stops errgroup.Group
		for _, c := range containers {
			if c.State != runtime.Exited {
				stops.Go(func() error { return rt.Stop(ctx, c.ID, podGrace) })
			}
		}
		return stops.Wait()
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
