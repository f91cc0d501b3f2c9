package loop

// Tests of how an outage is told.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestOutage(t *testing.T) {
	gone := apierrors.NewNotFound(corev1.Resource("pods"), "p")
	for _, tc := range []struct {
		name     string
		outcomes []error
		quiet    string // for each outcome, whether it is quiet
		over     int    // how often it is said that the outage is over
	}{
		{"all well", []error{nil, nil}, "nn", 0},
		{"one spell", []error{io.EOF, io.EOF, io.EOF}, "nyy", 0},
		{"two spells", []error{io.EOF, io.EOF, nil, io.EOF, io.EOF}, "nynny", 1},
		{"a refusal is an answer", []error{gone, gone, io.EOF, gone, gone}, "nnnnn", 1},
		{"overload", []error{apierrors.NewTooManyRequests("busy", 1), apierrors.NewServiceUnavailable("down"), apierrors.NewInternalError(io.EOF)}, "nyy", 0},
		{"told to stop", []error{io.EOF, fmt.Errorf("get: %w", context.Canceled), io.EOF}, "nny", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var text bytes.Buffer
			o := NewOutage(slog.New(slog.NewTextHandler(&text, nil)))
			var got strings.Builder
			for _, in := range tc.outcomes {
				err := o.Note(in)
				if !errors.Is(err, in) {
					t.Errorf("%v became %v", in, err)
				}
				if IsQuiet(err) {
					got.WriteByte('y')
				} else {
					got.WriteByte('n')
				}
			}
			if got.String() != tc.quiet {
				t.Errorf("quiet: %s, want %s", got.String(), tc.quiet)
			}
			if n := strings.Count(text.String(), "answers again"); n != tc.over {
				t.Errorf("said %d times that it is over, want %d:\n%s", n, tc.over, &text)
			}
		})
	}
	if err := NewOutage(nil).Note(nil); err != nil {
		t.Errorf("nothing happened: %v", err)
	}
}
