// The program under test.

package fleet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// program is hawser, built when the first test asks for it. Fleets meet it as they
// would anywhere: as a process of its own.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "hawser-fleet-")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "hawser")
	cmd := exec.Command("go", "build", "-trimpath", "-o", out, "./cmd/hawser")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("go build: %w\n%s", err, text)
	}
	return out, nil
})

// built says whether there is a program to remove.
var built bool

func removeProgram() {
	if !built {
		return
	}
	file, _ := program()
	if strings.HasSuffix(file, "/hawser") {
		file = filepath.Dir(file)
	}
	_ = os.RemoveAll(file)
}
