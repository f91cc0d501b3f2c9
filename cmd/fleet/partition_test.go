package fleet

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// pair is a connection through g, and its far end.
func pair(t *testing.T, g *partition) (near, far net.Conn) {
	t.Helper()
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	near, err := g.wrapDial(func(context.Context, string, string) (net.Conn, error) { return a, nil })(t.Context(), "mem", "b")
	if err != nil {
		t.Fatal(err)
	}
	return near, b
}

// A partition holds data in flight, in both directions, and loses none of it.
func TestPartitionKeepsData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g partition
		near, far := pair(t, &g)
		got := make(chan string, 2)
		read := func(c net.Conn) {
			b := make([]byte, 4)
			if _, err := io.ReadFull(c, b); err != nil {
				t.Error(err)
			}
			got <- string(b)
		}
		g.stop()
		g.stop()
		go read(near)
		go read(far)
		go func() { _, _ = near.Write([]byte("ping")) }()
		if _, err := far.Write([]byte("pong")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(got) > 0 {
			t.Fatalf("%q arrived during the partition", <-got)
		}
		g.resume()
		if a, b := <-got, <-got; a == b {
			t.Errorf("%q and %q", a, b)
		}
		_, _ = near.Close(), far.Close()
	})
}

// Deadlines hold during a partition, also one set later, and what was read is for the
// next Read.
func TestPartitionDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g partition
		near, far := pair(t, &g)
		defer far.Close()
		defer near.Close()
		g.stop()
		if _, err := far.Write([]byte("late")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			_ = near.SetDeadline(time.Now().Add(time.Second))
		}()
		b := make([]byte, 2)
		if _, err := near.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Errorf("read: %v after %v", err, time.Since(began))
		}
		if _, err := near.Write(b); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %v", err)
		}
		if err := near.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		g.resume()
		_ = far.Close()
		if all, err := io.ReadAll(near); string(all) != "late" || err != nil {
			t.Errorf("%q, %v", all, err)
		}
	})
}

// A connection closed or reset during a partition ends at once for the end that closed it, and for
// the far end when the partition heals.
func TestPartitionClose(t *testing.T) {
	for name, end := range map[string]func(net.Conn) error{"close": net.Conn.Close, "reset": tunnel.Abort} {
		t.Run(name, func(t *testing.T) { testPartitionClose(t, end) })
	}
}

func testPartitionClose(t *testing.T, end func(net.Conn) error) {
	synctest.Test(t, func(t *testing.T) {
		var g partition
		near, far := pair(t, &g)
		defer far.Close()
		g.stop()
		ended := make(chan error, 2)
		go func() { _, err := near.Read(make([]byte, 1)); ended <- err }()
		go func() { _, err := near.Write([]byte("x")); ended <- err }()
		synctest.Wait()
		_ = end(near)
		_ = end(near) // as TLS closes what below it was closed
		for range 2 {
			if err := <-ended; err == nil {
				t.Error("use of a closed connection worked")
			}
		}
		heard := make(chan error, 1)
		go func() { _, err := far.Read(make([]byte, 1)); heard <- err }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(heard) > 0 {
			t.Fatalf("the far end heard of it: %v", <-heard)
		}
		g.resume()
		if err := <-heard; err == nil {
			t.Error("the far end did not hear of it")
		}
	})
}

// Dials wait during a partition and fail while the machine is down; a cut resets all connections.
func TestPartitionDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g partition
		near, far := pair(t, &g)
		if n := g.cut(); n != 1 {
			t.Errorf("%d connections were cut", n)
		}
		if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("cut: %v", err)
		}
		if _, err := near.Read(make([]byte, 1)); err == nil {
			t.Error("a cut connection can be read")
		}
		if n := g.cut(); n != 0 {
			t.Errorf("%d connections were cut again", n)
		}
		g.stop()
		dial := g.wrapDial(func(context.Context, string, string) (net.Conn, error) { return far, nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := dial(ctx, "mem", "b"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial during the partition: %v", err)
		}
		g.setDown(true)
		if _, err := dial(t.Context(), "mem", "b"); !errors.Is(err, errDown) {
			t.Errorf("dial while down: %v", err)
		}
		g.setDown(false)
		g.resume()
		if _, err := dial(t.Context(), "mem", "b"); err != nil {
			t.Error(err)
		}
	})
}
