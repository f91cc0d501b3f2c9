// Writing without waiting.

package link

import (
	"bytes"
	"io"
	"sync"
	"testing"
	"testing/synctest"
)

func TestTryWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		if n := a.TryWrite([]byte("head"), []byte("body")); n != 8 {
			t.Errorf("took %d of 8", n)
		}
		expect(t, b, "headbody")
		r.stall()
		// It takes what there is room for, and what it takes is a prefix.
		data, taken := randomBytes(9, 8<<20), 0
		for taken < len(data) {
			n := a.TryWrite(data[taken:taken+10], data[taken+10:taken+10<<10])
			taken += n
			if synctest.Wait(); n < 10<<10 {
				break
			}
		}
		if taken < firstAhead || taken > 4<<20 {
			t.Errorf("took %d", taken)
		}
		// Nothing overtakes somebody who waits.
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = a.Write(data[taken : taken+1<<20]) }) // the reader notices
		synctest.Wait()
		if n := a.TryWrite(nil, []byte("x")); n != 0 {
			t.Error("took something while a Write waits")
		}
		r.set(func() { r.near[0].Stall(false) })
		got := make([]byte, taken+1<<20)
		if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, data[:len(got)]) {
			t.Errorf("not what was taken: %v", err)
		}
		wg.Wait()
		_ = a.Close() // never fails
		if n := a.TryWrite(nil, []byte("x")); n != 0 {
			t.Error("took something after Close")
		}
		r.close(t, b)
	})
}
