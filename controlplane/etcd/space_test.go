package etcd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A new member needs room; one that is there starts without.
func TestSpace(t *testing.T) {
	dir := t.TempDir()
	const more = 1 << 62 // than any disk has
	if err := checkSpace(dir, more); err == nil || !strings.Contains(err.Error(), "MiB: make room") {
		t.Errorf("too little: %v", err)
	}
	if err := checkSpace(dir, 1); err != nil {
		t.Errorf("enough: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, memberDir, "member", "wal"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkSpace(dir, more); err != nil {
		t.Errorf("one that is there: %v", err)
	}
	if err := checkSpace(filepath.Join(dir, "none"), 1); err == nil {
		t.Error("a directory that is not there has room")
	}
}
