// The flags about pods that files of the machine define.

package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/node/staticpods"
)

// Names of the flags, which are the kubelet's.
const (
	manifestPath   = "pod-manifest-path"
	manifestPeriod = "file-check-frequency"
)

// staticOptions are the flags about static pods.
type staticOptions struct {
	manifests       string
	manifestsPeriod time.Duration
}

func (o *staticOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.manifests, manifestPath, "", "a directory of files with a pod each, or one such file, that are run whatever the API says: static pods; containers do not see it")
	f.DurationVar(&o.manifestsPeriod, manifestPeriod, staticpods.DefaultPeriod, "how often the files of --"+manifestPath+" are read")
}

// check refuses what cannot work, naming the flag. A path that does not exist has no pods.
func (o *staticOptions) check() error {
	if o.manifests != "" {
		if !filepath.IsAbs(o.manifests) || filepath.Clean(o.manifests) == "/" {
			return fmt.Errorf("--%s %q: want an absolute path, and not /", manifestPath, o.manifests)
		}
		o.manifests = filepath.Clean(o.manifests)
	}
	if o.manifestsPeriod < 100*time.Millisecond {
		return fmt.Errorf("--%s %s: want 100ms or more", manifestPeriod, o.manifestsPeriod)
	}
	return nil
}

// hidden are the paths that containers do not see: what is written there is run.
func (o *staticOptions) hidden() []string {
	if o.manifests == "" {
		return nil
	}
	return []string{o.manifests}
}
