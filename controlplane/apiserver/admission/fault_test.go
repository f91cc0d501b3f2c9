package admission

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestFault: what clients are to try again stays what it is.
func TestFault(t *testing.T) {
	for _, err := range []error{
		apierrors.NewTooManyRequests("storage is (re)initializing", 1), apierrors.NewServiceUnavailable("no store"), apierrors.NewTimeoutError("no answer", 0),
	} {
		if got := fault("limit ranges", err); apierrors.ReasonForError(got) != apierrors.ReasonForError(err) {
			t.Errorf("%v became %v", err, got)
		}
	}
	if err := fault("limit ranges", errors.New("broken")); !apierrors.IsInternalError(err) {
		t.Errorf("%v", err)
	}
}
