// What is said when a cluster does not come up.

package main

import (
	"context"
	"errors"
	"testing"
)

func TestNotReadyIsOneLine(t *testing.T) {
	cause := errors.New("interrupt signal received")
	for _, tt := range []struct {
		last error
		want string
	}{
		{nil, "2 of 3 nodes are not Ready: interrupt signal received; see LOG"},
		{context.Canceled, "2 of 3 nodes are not Ready: interrupt signal received; see LOG"},
		{errors.New("refused"), "2 of 3 nodes are not Ready: interrupt signal received; last: refused; see LOG"},
	} {
		if err := notReady(2, 3, cause, tt.last, "LOG"); err.Error() != tt.want || !errors.Is(err, cause) {
			t.Errorf("last %v: %q, want %q", tt.last, err, tt.want)
		}
	}
}
