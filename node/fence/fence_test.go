package fence

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Fence
		ctx, cancel := context.WithCancel(t.Context())
		began, ended := 0, 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.While(ctx, func(ctx context.Context) {
				began++
				<-ctx.Done()
				ended++
			})
		}()
		want := func(b, e int, when string) {
			t.Helper()
			synctest.Wait()
			if began != b || ended != e {
				t.Errorf("%s: begun %d times, ended %d times, want %d and %d", when, began, ended, b, e)
			}
		}
		want(1, 0, "down")
		f.Set(false)
		want(1, 0, "down again")
		f.Set(true)
		want(1, 1, "up")
		<-time.After(time.Hour)
		want(1, 1, "up for an hour")
		f.Set(false)
		want(2, 1, "down once more")
		f.Set(true)
		f.Set(false)
		want(3, 2, "up and down at once")
		f.Set(true)
		want(3, 3, "up in the end")
		cancel()
		<-done
		want(3, 3, "cancelled while up")
	})
}

func TestWhileEndsWithItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, f := range map[string]*Fence{"nil": nil, "zero": {}} {
			times := 0
			f.While(t.Context(), func(context.Context) { times++ })
			if times != 1 || f.Up() {
				t.Errorf("%s: work was begun %d times, up %v; want once, and down", name, times, f.Up())
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-time.After(time.Second)
				cancel()
			}()
			f.While(ctx, func(ctx context.Context) { <-ctx.Done() })
			f.While(ctx, func(context.Context) { t.Errorf("%s: work begins without time", name) })
		}
	})
}
