// Package staticpods reads the pods that files of the machine define, as a kubelet does
// it (--pod-manifest-path): they run whatever the API says, and without it.
//
// A file is a v1 Pod in YAML or JSON. The pod is called like the file says, with the
// node's name appended, and its uid is a hash of the node, of the file's path and of
// what the file says: another content is another pod. Dot files are left out. A file
// that cannot be used has no pod, also if it had one before; the log tells so once.
//
// Files are read every period. Nothing tells of a change in between.
package staticpods

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// DefaultPeriod is Config.Period where nothing else is said, as a kubelet's.
	DefaultPeriod = 20 * time.Second

	maxFile  = 10 << 20 // bytes of a file, as a kubelet's
	maxPod   = 1 << 20  // bytes of a pod as JSON: the API stores no larger one
	maxFiles = 512      // of a directory, the first ones by name
	maxNames = 8192     // of a directory, dot files and all
)

// Config of a Source.
type Config struct {
	Path     string        // a directory of files, or one file. Required
	NodeName string        // required
	Period   time.Duration // between two looks at the files: DefaultPeriod
	Log      *slog.Logger  // nil discards
}

// A Source has the pods that the files define.
type Source struct {
	cfg Config

	mu   sync.Mutex
	pods []*corev1.Pod // by the name of their file; replaced, never changed
	read bool          // the files could be read, if only once

	// Owned by Read.
	files map[string]manifest // as last read, by path
	told  map[string]string   // what the log says of a path
}

// A manifest is what was made of a file's content.
type manifest struct {
	sum [sha256.Size]byte
	pod *corev1.Pod // nil with an error
	err error
}

// New checks cfg and makes a Source. It reads nothing.
func New(cfg Config) (*Source, error) {
	if cfg.Path == "" || cfg.NodeName == "" {
		return nil, errors.New("static pods: Config.Path and NodeName are required")
	}
	cfg.Period = cmp.Or(cfg.Period, DefaultPeriod)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Source{cfg: cfg, files: map[string]manifest{}, told: map[string]string{}}, nil
}

// Pods returns the pods, and whether they are all: they are not known before the files
// could be read. The caller changes neither the list nor the pods. A pod is the same as
// before as long as its file says the same.
func (s *Source) Pods() ([]*corev1.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods, s.read
}

// Run reads the files every period until ctx is done, and calls changed when there are
// other pods than before.
func (s *Source) Run(ctx context.Context, changed func()) {
	t := time.NewTicker(s.cfg.Period)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if s.Read() {
				changed()
			}
		}
	}
}

// Read reads the files now, and reports whether there are other pods than before. One
// call at a time, and none beside Run.
func (s *Source) Read() bool {
	paths, err := s.paths()
	said := map[string]error{s.cfg.Path: err}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.tell(said)
		return false // what there was stays
	}
	found := map[string]manifest{}
	if len(paths) > maxFiles {
		said[paths[maxFiles]] = fmt.Errorf("there are %d files, and no more than the first %d are read", len(paths), maxFiles)
		paths = paths[:maxFiles]
	}
	for _, path := range paths {
		m, err := s.manifest(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // since it was listed
		}
		if said[path] = err; err != nil && path == s.cfg.Path {
			s.tell(said)
			return false // as a kubelet does it with one file
		}
		found[path] = m
	}
	pods := unique(paths, found, said)
	s.files = found
	s.tell(said)
	s.mu.Lock()
	defer s.mu.Unlock()
	same := s.read && slices.Equal(s.pods, pods)
	s.pods, s.read = pods, true
	return !same
}

// unique lists the pods. Of several with one name the last counts, as with a kubelet.
func unique(paths []string, found map[string]manifest, said map[string]error) []*corev1.Pod {
	var pods []*corev1.Pod
	taken := map[types.NamespacedName]string{}
	for _, path := range slices.Backward(paths) {
		p := found[path].pod
		if p == nil {
			continue
		}
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		if by, twice := taken[name]; twice {
			said[path] = fmt.Errorf("its pod %s is that of %s as well, which counts", name, by)
			continue
		}
		taken[name] = path
		pods = append(pods, p)
	}
	slices.Reverse(pods)
	return pods
}

// paths lists the files that are to be read, by name.
func (s *Source) paths() ([]string, error) {
	info, err := os.Stat(s.cfg.Path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for manifests: %w", err)
	case info.Mode().IsRegular():
		return []string{s.cfg.Path}, nil
	case !info.IsDir():
		return nil, errors.New("is neither a directory nor a file")
	}
	dir, err := os.Open(s.cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("look for manifests: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("look for manifests: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, ".") })
	slices.Sort(names)
	paths := make([]string, 0, len(names))
	for _, name := range names {
		paths = append(paths, filepath.Join(s.cfg.Path, name))
	}
	return paths, nil
}

// manifest reads a file, unless it says what it said before.
func (s *Source) manifest(path string) (manifest, error) {
	data, err := readFile(path)
	if err != nil {
		return manifest{}, err
	}
	sum := sha256.Sum256(data)
	m, known := s.files[path]
	if !known || m.sum != sum {
		m = manifest{sum: sum}
		m.pod, m.err = decode(data, path, s.cfg.NodeName, s.unknown)
		if m.err == nil {
			m.pod.Annotations[seenAnnotation] = time.Now().Format(time.RFC3339Nano)
		}
	}
	return m, m.err
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is no file; directories are not looked into")
	}
	f, err := os.Open(path) //nolint:gosec // the administrator's
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("has more than %d bytes", maxFile)
	}
	return data, nil
}

// unknown tells of fields that are unknown or deprecated. It is called when a file has changed.
func (s *Source) unknown(path, what string) {
	s.cfg.Log.Warn("a static pod's manifest has fields that are unknown and ignored, or deprecated: correct them, or take them out", "file", path, "fields", what)
}

// tell says what is wrong with paths, and when it no longer is, once each time.
func (s *Source) tell(said map[string]error) {
	for _, path := range slices.Sorted(maps.Keys(said)) {
		err, before := said[path], s.told[path]
		switch {
		case err == nil && before != "":
			delete(s.told, path)
			s.cfg.Log.Info("static pods are read again", "file", path)
		case err == nil || err.Error() == before:
		case path == s.cfg.Path && errors.Is(err, fs.ErrNotExist):
			s.told[path] = err.Error()
			s.cfg.Log.Info("there are no static pods: --pod-manifest-path does not exist", "file", path)
		case path == s.cfg.Path:
			s.told[path] = err.Error()
			s.cfg.Log.Warn("static pods cannot be read, those that there were stay: correct it", "file", path, "err", err)
		default:
			s.told[path] = err.Error()
			s.cfg.Log.Warn("a manifest cannot be used, and no pod is run for it: correct it or take it away", "file", path, "err", err)
		}
	}
	maps.DeleteFunc(s.told, func(path string, _ string) bool { _, there := said[path]; return !there })
}
