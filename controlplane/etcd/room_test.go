// Stores that are full.

package etcd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// small makes a server with room for a few values of a megabyte.
func small(t *testing.T, dir string, look time.Duration) *Server {
	t.Helper()
	s, err := New(Config{Dir: dir, Quota: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s.look = look
	return s
}

// fill puts values at the keys that key names until one is refused.
func fill(t *testing.T, c *clientv3.Client, key func(i int) string) {
	t.Helper()
	for i := range 64 {
		switch _, err := c.Put(t.Context(), key(i), strings.Repeat("x", 1<<20)); {
		case errors.Is(err, rpctypes.ErrNoSpace):
			return
		case err != nil:
			t.Fatal(err)
		}
	}
	t.Fatal("it is never full")
}

// opens waits until the store takes a write again.
func opens(t *testing.T, c *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		switch _, err := c.Put(ctx, "/now", "x"); {
		case err == nil:
			return
		case !errors.Is(err, rpctypes.ErrNoSpace):
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// A store that is full of old versions opens by itself; one that is full of objects once these
// have been deleted.
func TestFullStoreOpens(t *testing.T) {
	c, _ := start(t, small(t, filepath.Join(t.TempDir(), "store"), 50*time.Millisecond))
	fill(t, c, func(int) string { return "/same" })
	opens(t, c)
	fill(t, c, func(i int) string { return fmt.Sprint("/each/", i) })
	if _, err := c.Delete(t.Context(), "/each/", clientv3.WithPrefix()); err != nil {
		t.Fatalf("delete on a full store: %v", err)
	}
	opens(t, c)
}

// A store that was full when its member ended is open once the next one is ready.
func TestFullStoreStarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	c, stop := start(t, small(t, dir, time.Hour))
	fill(t, c, func(int) string { return "/same" })
	if _, err := c.Put(t.Context(), "/more", "x"); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Fatalf("it is not full: %v", err)
	}
	stop()
	c, _ = start(t, small(t, dir, 50*time.Millisecond))
	if _, err := c.Put(t.Context(), "/more", "x"); err != nil {
		t.Error(err)
	}
}
