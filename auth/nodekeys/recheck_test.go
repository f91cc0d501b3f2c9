package nodekeys

// Tests of keys that the memory does not have.

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// TestKeyIsNotRefusedUnread: while the record is being read because of a key that the memory does
// not have, and after that has failed, nobody with that key is refused: an agent that is refused
// stops its pods.
func TestKeyIsNotRefusedUnread(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.must(r.book.Claim(ctx, "a", number(1), ""))
		r.makeNode("a", "u1")
		r.admits("before", "a", 1)
		<-time.After(2 * readInterval)

		release, reads := make(chan error), 0
		r.react("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			if reads++; reads > 1 {
				return false, nil, nil
			}
			if err := <-release; err != nil {
				return true, nil, err
			}
			return false, nil, nil
		})
		answers := make(chan error, 2)
		admit := func() { answers <- r.keeper.Admit(ctx, "a", number(2)) }
		go admit()
		synctest.Wait()
		go admit() // beside the first
		synctest.Wait()
		if n := len(answers); n != 0 {
			t.Errorf("%d answers while the record is read: %v", n, <-answers)
		}
		release <- apierrors.NewServiceUnavailable("no leader")
		var refused *RefusedError
		for range 2 {
			if err := <-answers; err == nil || errors.As(err, &refused) {
				t.Errorf("the read failed: %v", err)
			}
		}
		if err := r.keeper.Admit(ctx, "a", number(2)); err == nil || errors.As(err, &refused) {
			t.Errorf("just after the read failed: %v", err)
		}
		r.admits("read", "a", 1)
	})
}
