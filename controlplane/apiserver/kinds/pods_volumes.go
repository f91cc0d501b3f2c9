// Rules for the volumes of pods.

package kinds

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of projected credentials, in seconds.
const (
	minTokenExpiration       = 10 * 60
	maxTokenExpiration       = 1 << 32
	minCertificateExpiration = 60 * 60
)

const (
	maxFileMode  = 0o777
	fileModeText = "must be a number between 0 and 0777 (octal), both inclusive"
)

func volumes(list []corev1.Volume, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i := range list {
		v, at := &list[i], p.Index(i)
		if v.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, dnsLabel(v.Name, at.Child("name"))...)
		}
		if names[v.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), v.Name))
		}
		names[v.Name] = true
		errs = append(errs, oneSource(&v.VolumeSource, at)...)
		errs = append(errs, volumeSource(&v.VolumeSource, at)...)
	}
	return errs
}

// oneSource wants exactly one of the sources, which are the pointer fields of
// the struct that s points to.
func oneSource(s any, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	n := 0
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		if v.Field(i).Kind() != reflect.Pointer || v.Field(i).IsNil() {
			continue
		}
		if n++; n > 1 {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			errs = append(errs, field.Forbidden(p.Child(name), "may not specify more than 1 volume type"))
		}
	}
	if n == 0 {
		errs = append(errs, field.Required(p, "must specify a volume type"))
	}
	return errs
}

func volumeSource(s *corev1.VolumeSource, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v := s.EmptyDir; v != nil && v.SizeLimit != nil && v.SizeLimit.Sign() < 0 {
		errs = append(errs, field.Forbidden(p.Child("emptyDir", "sizeLimit"), "SizeLimit field must be a valid resource quantity"))
	}
	if v := s.HostPath; v != nil {
		errs = append(errs, hostPath(v, p.Child("hostPath"))...)
	}
	if v := s.Secret; v != nil {
		at := p.Child("secret")
		errs = append(errs, required(v.SecretName, at.Child("secretName"))...)
		errs = append(errs, fileMode(v.DefaultMode, at.Child("defaultMode"))...)
		errs = append(errs, keysToPaths(v.Items, at.Child("items"))...)
	}
	if v := s.ConfigMap; v != nil {
		at := p.Child("configMap")
		errs = append(errs, required(v.Name, at.Child("name"))...)
		errs = append(errs, fileMode(v.DefaultMode, at.Child("defaultMode"))...)
		errs = append(errs, keysToPaths(v.Items, at.Child("items"))...)
	}
	if v := s.DownwardAPI; v != nil {
		at := p.Child("downwardAPI")
		errs = append(errs, fileMode(v.DefaultMode, at.Child("defaultMode"))...)
		for i := range v.Items {
			errs = append(errs, downwardAPIFile(&v.Items[i], at.Child("items").Index(i))...)
		}
	}
	if v := s.Projected; v != nil {
		errs = append(errs, fileMode(v.DefaultMode, p.Child("projected", "defaultMode"))...)
		errs = append(errs, projections(v.Sources, p.Child("projected"))...)
	}
	if v := s.PersistentVolumeClaim; v != nil {
		errs = append(errs, required(v.ClaimName, p.Child("persistentVolumeClaim", "claimName"))...)
	}
	if v := s.Ephemeral; v != nil {
		errs = append(errs, ephemeralVolume(v, p.Child("ephemeral"))...)
	}
	if v := s.Image; v != nil {
		errs = append(errs, required(v.Reference, p.Child("image", "reference"))...)
		errs = append(errs, oneOf(v.PullPolicy, p.Child("image", "pullPolicy"), corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)...)
	}
	if v := s.GitRepo; v != nil {
		errs = append(errs, required(v.Repository, p.Child("gitRepo", "repository"))...)
		errs = append(errs, relativePath(v.Directory, p.Child("gitRepo", "directory"))...)
	}
	return append(errs, networkVolumeSource(s, p)...)
}

// networkVolumeSource wants of each remote source what makes it findable.
func networkVolumeSource(s *corev1.VolumeSource, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v := s.NFS; v != nil {
		errs = append(errs, nfs(v, p.Child("nfs"))...)
	}
	if v := s.CSI; v != nil {
		errs = append(errs, csiDriverName(v.Driver, p.Child("csi", "driver"))...)
		errs = append(errs, localReference(v.NodePublishSecretRef, p.Child("csi", "nodePublishSecretRef"))...)
	}
	if v := s.ISCSI; v != nil {
		errs = append(errs, required(v.TargetPortal, p.Child("iscsi", "targetPortal"))...)
		errs = append(errs, required(v.IQN, p.Child("iscsi", "iqn"))...)
		if v.Lun < 0 || v.Lun > 255 {
			errs = append(errs, field.Invalid(p.Child("iscsi", "lun"), v.Lun, validation.InclusiveRangeError(0, 255)))
		}
	}
	if v := s.Glusterfs; v != nil {
		errs = append(errs, required(v.EndpointsName, p.Child("glusterfs", "endpoints"))...)
		errs = append(errs, required(v.Path, p.Child("glusterfs", "path"))...)
	}
	if v := s.RBD; v != nil {
		if len(v.CephMonitors) == 0 {
			errs = append(errs, field.Required(p.Child("rbd", "monitors"), ""))
		}
		errs = append(errs, required(v.RBDImage, p.Child("rbd", "image"))...)
	}
	if v := s.CephFS; v != nil && len(v.Monitors) == 0 {
		errs = append(errs, field.Required(p.Child("cephfs", "monitors"), ""))
	}
	if v := s.Cinder; v != nil {
		errs = append(errs, required(v.VolumeID, p.Child("cinder", "volumeID"))...)
	}
	if v := s.GCEPersistentDisk; v != nil {
		errs = append(errs, required(v.PDName, p.Child("gcePersistentDisk", "pdName"))...)
	}
	if v := s.AWSElasticBlockStore; v != nil {
		errs = append(errs, required(v.VolumeID, p.Child("awsElasticBlockStore", "volumeID"))...)
	}
	if v := s.AzureFile; v != nil {
		errs = append(errs, required(v.SecretName, p.Child("azureFile", "secretName"))...)
		errs = append(errs, required(v.ShareName, p.Child("azureFile", "shareName"))...)
	}
	if v := s.AzureDisk; v != nil {
		errs = append(errs, required(v.DiskName, p.Child("azureDisk", "diskName"))...)
		errs = append(errs, required(v.DataDiskURI, p.Child("azureDisk", "diskURI"))...)
	}
	if v := s.FlexVolume; v != nil {
		errs = append(errs, required(v.Driver, p.Child("flexVolume", "driver"))...)
	}
	if v := s.VsphereVolume; v != nil {
		errs = append(errs, required(v.VolumePath, p.Child("vsphereVolume", "volumePath"))...)
	}
	return errs
}

func hostPath(v *corev1.HostPathVolumeSource, p *field.Path) field.ErrorList {
	if v.Path == "" {
		return field.ErrorList{field.Required(p.Child("path"), "")}
	}
	errs := noBacksteps(v.Path, p.Child("path"))
	return append(errs, optionalOneOf(v.Type, p.Child("type"), corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory,
		corev1.HostPathFileOrCreate, corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev)...)
}

func nfs(v *corev1.NFSVolumeSource, p *field.Path) field.ErrorList {
	errs := required(v.Server, p.Child("server"))
	if v.Path == "" {
		return append(errs, field.Required(p.Child("path"), ""))
	}
	if !strings.HasPrefix(v.Path, "/") {
		errs = append(errs, field.Invalid(p.Child("path"), v.Path, "must be an absolute path"))
	}
	return errs
}

// csiDriverName is a DNS subdomain of at most 63 characters; drivers may write
// it in upper case.
func csiDriverName(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	errs := dnsSubdomain(strings.ToLower(name), p)
	if len(name) > validation.DNS1123LabelMaxLength {
		errs = append(errs, field.TooLong(p, name, validation.DNS1123LabelMaxLength))
	}
	return errs
}

func ephemeralVolume(v *corev1.EphemeralVolumeSource, p *field.Path) field.ErrorList {
	at := p.Child("volumeClaimTemplate")
	if v.VolumeClaimTemplate == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	errs := validLabels(v.VolumeClaimTemplate.Labels, at.Child("metadata", "labels"))
	return append(errs, claimSpec(&v.VolumeClaimTemplate.Spec, at.Child("spec"))...)
}

func fileMode(mode *int32, p *field.Path) field.ErrorList {
	if mode != nil && (*mode < 0 || *mode > maxFileMode) {
		return field.ErrorList{field.Invalid(p, *mode, fileModeText)}
	}
	return nil
}

// fileName wants the relative path of a file that kubelet may write: names that
// begin with two dots are its own.
func fileName(path string, p *field.Path) field.ErrorList {
	if path == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	errs := relativePath(path, p)
	if len(errs) == 0 && strings.HasPrefix(path, "..") {
		errs = append(errs, field.Invalid(p, path, "must not start with '..'"))
	}
	return errs
}

func keysToPaths(items []corev1.KeyToPath, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, it := range items {
		at := p.Index(i)
		errs = append(errs, required(it.Key, at.Child("key"))...)
		errs = append(errs, fileName(it.Path, at.Child("path"))...)
		errs = append(errs, fileMode(it.Mode, at.Child("mode"))...)
	}
	return errs
}

func downwardAPIFile(f *corev1.DownwardAPIVolumeFile, p *field.Path) field.ErrorList {
	errs := fileName(f.Path, p.Child("path"))
	switch {
	case f.FieldRef != nil:
		errs = append(errs, fieldRef(f.FieldRef, fileFields(), p.Child("fieldRef"))...)
		if f.ResourceFieldRef != nil {
			errs = append(errs, field.Invalid(p, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
		}
	case f.ResourceFieldRef != nil:
		errs = append(errs, resourceFieldRef(f.ResourceFieldRef, true, p.Child("resourceFieldRef"))...)
	default:
		errs = append(errs, field.Required(p, "one of fieldRef and resourceFieldRef is required"))
	}
	return append(errs, fileMode(f.Mode, p.Child("mode"))...)
}

// projections checks the sources of the projected volume at p, and that no two of them write the
// same file: a token may be written over.
func projections(sources []corev1.VolumeProjection, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	files := sets.New[string]()
	for i := range sources {
		s, at := &sources[i], p.Child("sources").Index(i)
		n := oneSource(s, at)
		for _, e := range n {
			if e.Type == field.ErrorTypeForbidden {
				e.Detail = "may not specify more than 1 volume type per source"
			}
		}
		errs = append(errs, n...)
		if v := s.Secret; v != nil {
			errs = append(errs, required(v.Name, at.Child("secret", "name"))...)
			errs = append(errs, keysToPaths(v.Items, at.Child("secret", "items"))...)
			errs = append(errs, conflicts(files, keyPaths(v.Items), v.Name, p)...)
		}
		if v := s.ConfigMap; v != nil {
			errs = append(errs, required(v.Name, at.Child("configMap", "name"))...)
			errs = append(errs, keysToPaths(v.Items, at.Child("configMap", "items"))...)
			errs = append(errs, conflicts(files, keyPaths(v.Items), v.Name, p)...)
		}
		if v := s.DownwardAPI; v != nil {
			for j := range v.Items {
				errs = append(errs, downwardAPIFile(&v.Items[j], at.Child("downwardAPI", "items").Index(j))...)
				errs = append(errs, conflicts(files, []string{v.Items[j].Path}, v.Items[j].Path, p)...)
			}
		}
		errs = append(errs, credentialProjection(s, files, p, at)...)
	}
	return errs
}

// credentialProjection has the sources that are made for the pod when it starts. volume is the
// path of all sources, and p of this one.
func credentialProjection(s *corev1.VolumeProjection, files sets.Set[string], volume, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v := s.ServiceAccountToken; v != nil {
		at := p.Child("serviceAccountToken")
		errs = append(errs, fileName(v.Path, at.Child("path"))...)
		if e := v.ExpirationSeconds; e != nil && *e < minTokenExpiration {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *e, "may not specify a duration less than 10 minutes"))
		} else if e != nil && *e > maxTokenExpiration {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *e, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	if v := s.ClusterTrustBundle; v != nil {
		at := p.Child("clusterTrustBundle")
		switch {
		case v.Name != nil && v.SignerName != nil:
			errs = append(errs, field.Invalid(at, v, "only one of name and signerName may be used"))
		case v.Name == nil && v.SignerName == nil:
			errs = append(errs, field.Required(at, "either name or signerName must be specified"))
		}
		errs = append(errs, labelSelector(v.LabelSelector, at.Child("labelSelector"))...)
		errs = append(errs, fileName(v.Path, at.Child("path"))...)
		errs = append(errs, conflicts(files, []string{v.Path}, v.Path, volume)...)
	}
	if v := s.PodCertificate; v != nil {
		at := p.Child("podCertificate")
		errs = append(errs, required(v.SignerName, at.Child("signerName"))...)
		errs = append(errs, required(v.KeyType, at.Child("keyType"))...)
		if e := v.MaxExpirationSeconds; e != nil && *e < minCertificateExpiration {
			errs = append(errs, field.Invalid(at.Child("maxExpirationSeconds"), *e, "if provided, maxExpirationSeconds must be >= 3600"))
		}
		for _, f := range []struct{ name, path string }{
			{"credentialBundlePath", v.CredentialBundlePath}, {"keyPath", v.KeyPath}, {"certificateChainPath", v.CertificateChainPath},
		} {
			if f.path != "" {
				errs = append(errs, fileName(f.path, at.Child(f.name))...)
				errs = append(errs, conflicts(files, []string{f.path}, f.path, volume)...)
			}
		}
	}
	return errs
}

func keyPaths(items []corev1.KeyToPath) []string {
	var paths []string
	for _, it := range items {
		paths = append(paths, it.Path)
	}
	return paths
}

// conflicts adds paths to files and reports one that was there already.
func conflicts(files sets.Set[string], paths []string, source string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, path := range paths {
		if path == "" {
			continue
		}
		if files.Has(path) {
			errs = append(errs, field.Invalid(p, source, "conflicting duplicate paths"))
		}
		files.Insert(path)
	}
	return errs
}
