// Warnings about files of a volume that are written over each other.

package kinds

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A volumeFile is a file of a volume, and what it is from where that can differ.
type volumeFile struct{ path, source string }

func (f volumeFile) String() string {
	if f.source == "" {
		return fmt.Sprintf("%q", f.path)
	}
	return fmt.Sprintf("%q (%s)", f.path, f.source)
}

// overlaps warns of two files of one path in a volume, and of files in one that is a file.
func overlaps(w *warnings, volumes []corev1.Volume) {
	for i := range volumes {
		v := &volumes[i]
		var files []volumeFile
		what := ""
		switch {
		case v.ConfigMap != nil:
			files, what = keyFiles(v.ConfigMap.Items, ""), fmt.Sprintf("ConfigMap %q", v.ConfigMap.Name)
		case v.Secret != nil:
			files, what = keyFiles(v.Secret.Items, ""), fmt.Sprintf("Secret %q", v.Secret.SecretName)
		case v.DownwardAPI != nil:
			files, what = downwardFiles(v.DownwardAPI.Items, ""), "DownwardAPI"
		case v.Projected != nil:
			what = "Projected"
			for j := range v.Projected.Sources {
				files = append(files, projectedFiles(&v.Projected.Sources[j])...)
			}
		}
		eachOverlap(files, func(file, other volumeFile) {
			w.add("volume %q (%s): overlapping paths: %s with %s", v.Name, what, file, other)
		})
	}
}

// eachOverlap calls f for every file with the nearest other one that it is, or is in. The one that
// is named last in the volume comes first.
func eachOverlap(files []volumeFile, f func(file, other volumeFile)) {
	type entry struct {
		dir   string // the path, with a slash
		index int
	}
	sorted := make([]entry, 0, len(files))
	for i := range files {
		files[i].path = strings.TrimRight(files[i].path, "/")
		if files[i].path != "" {
			sorted = append(sorted, entry{files[i].path + "/", i})
		}
	}
	slices.SortStableFunc(sorted, func(a, b entry) int { return strings.Compare(a.dir, b.dir) })
	var around []entry // each is in those before it; what is in none of them is in none of all
	for _, e := range sorted {
		for len(around) > 0 && !strings.HasPrefix(e.dir, around[len(around)-1].dir) {
			around = around[:len(around)-1]
		}
		if len(around) > 0 {
			other := around[len(around)-1]
			f(files[max(e.index, other.index)], files[min(e.index, other.index)])
			if e.dir == other.dir {
				continue
			}
		}
		around = append(around, e)
	}
}

func keyFiles(items []corev1.KeyToPath, source string) []volumeFile {
	var files []volumeFile
	for _, it := range items {
		files = append(files, volumeFile{it.Path, source})
	}
	return files
}

func downwardFiles(items []corev1.DownwardAPIVolumeFile, source string) []volumeFile {
	var files []volumeFile
	for _, it := range items {
		files = append(files, volumeFile{it.Path, source})
	}
	return files
}

// projectedFiles are the files of one source that are known by name.
func projectedFiles(s *corev1.VolumeProjection) []volumeFile {
	switch {
	case s.ConfigMap != nil:
		return keyFiles(s.ConfigMap.Items, fmt.Sprintf("ConfigMap %q", s.ConfigMap.Name))
	case s.Secret != nil:
		return keyFiles(s.Secret.Items, fmt.Sprintf("Secret %q", s.Secret.Name))
	case s.DownwardAPI != nil:
		return downwardFiles(s.DownwardAPI.Items, "DownwardAPI")
	case s.ServiceAccountToken != nil:
		return []volumeFile{{s.ServiceAccountToken.Path, "ServiceAccountToken"}}
	case s.ClusterTrustBundle != nil:
		name := derefOr(s.ClusterTrustBundle.Name, deref(s.ClusterTrustBundle.SignerName))
		return []volumeFile{{s.ClusterTrustBundle.Path, fmt.Sprintf("ClusterTrustBundle %q", name)}}
	case s.PodCertificate != nil:
		return []volumeFile{
			{s.PodCertificate.CertificateChainPath, "PodCertificate chain"},
			{s.PodCertificate.KeyPath, "PodCertificate key"},
			{s.PodCertificate.CredentialBundlePath, "PodCertificate credential bundle"},
		}
	}
	return nil
}
