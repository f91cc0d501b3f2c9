package volumes

import (
	"path/filepath"
	"strings"
	"testing"
)

// An error of writing a volume names the volume's file and not the temporary one, whose name is
// random: each try to mount would be an event of its own.
func TestWriteErrorIsStable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volume")
	files := map[string]file{"a/" + strings.Repeat("n", 300): {mode: 0o644}} // too long a name
	first := writeAtomically(dir, files, nil, nil)
	second := writeAtomically(dir, files, nil, nil)
	if first == nil || second == nil || first.Error() != second.Error() || !strings.Contains(first.Error(), filepath.Join(dir, "a")) {
		t.Errorf("first %v\nsecond %v", first, second)
	}
}
