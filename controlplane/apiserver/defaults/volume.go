// Defaults of volumes, persistent volumes and claims.

package defaults

import (
	corev1 "k8s.io/api/core/v1"
)

// Lifetimes of projected credentials, in seconds.
const (
	tokenExpiration          = 60 * 60
	podCertificateExpiration = 24 * 60 * 60
)

func volume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case v.Secret != nil:
		setPtr(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	case v.ConfigMap != nil:
		setPtr(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	case v.DownwardAPI != nil:
		setPtr(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		downwardAPIFiles(v.DownwardAPI.Items)
	case v.Projected != nil:
		projected(v.Projected)
	case v.HostPath != nil:
		setPtr(&v.HostPath.Type, corev1.HostPathUnset)
	case v.Image != nil:
		set(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	case v.Ephemeral != nil:
		if t := v.Ephemeral.VolumeClaimTemplate; t != nil {
			claimSpec(&t.Spec)
		}
	case v.ISCSI != nil:
		set(&v.ISCSI.ISCSIInterface, "default")
	case v.RBD != nil:
		rbd(&v.RBD.RBDPool, &v.RBD.RadosUser, &v.RBD.Keyring)
	case v.AzureDisk != nil:
		azureDisk(v.AzureDisk)
	case v.ScaleIO != nil:
		scaleIO(&v.ScaleIO.StorageMode, &v.ScaleIO.FSType)
	}
}

func projected(p *corev1.ProjectedVolumeSource) {
	setPtr(&p.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range p.Sources {
		s := &p.Sources[i]
		if s.DownwardAPI != nil {
			downwardAPIFiles(s.DownwardAPI.Items)
		}
		if s.ServiceAccountToken != nil {
			setPtr(&s.ServiceAccountToken.ExpirationSeconds, tokenExpiration)
		}
		if s.PodCertificate != nil {
			setPtr(&s.PodCertificate.MaxExpirationSeconds, podCertificateExpiration)
		}
	}
}

func downwardAPIFiles(files []corev1.DownwardAPIVolumeFile) {
	for i := range files {
		fieldRef(files[i].FieldRef)
	}
}

func rbd(pool, user, keyring *string) {
	set(pool, "rbd")
	set(user, "admin")
	set(keyring, "/etc/ceph/keyring")
}

func azureDisk(d *corev1.AzureDiskVolumeSource) {
	setPtr(&d.CachingMode, corev1.AzureDataDiskCachingReadWrite)
	setPtr(&d.Kind, corev1.AzureSharedBlobDisk)
	setPtr(&d.FSType, "ext4")
	setPtr(&d.ReadOnly, false)
}

func scaleIO(mode, fsType *string) {
	set(mode, "ThinProvisioned")
	set(fsType, "xfs")
}

func persistentVolume(o *corev1.PersistentVolume) {
	set(&o.Status.Phase, corev1.VolumePending)
	persistentVolumeSpec(&o.Spec)
}

func persistentVolumeSpec(s *corev1.PersistentVolumeSpec) {
	set(&s.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	setPtr(&s.VolumeMode, corev1.PersistentVolumeFilesystem)
	resourceList(s.Capacity)
	switch {
	case s.HostPath != nil:
		setPtr(&s.HostPath.Type, corev1.HostPathUnset)
	case s.ISCSI != nil:
		set(&s.ISCSI.ISCSIInterface, "default")
	case s.RBD != nil:
		rbd(&s.RBD.RBDPool, &s.RBD.RadosUser, &s.RBD.Keyring)
	case s.AzureDisk != nil:
		azureDisk(s.AzureDisk)
	case s.ScaleIO != nil:
		scaleIO(&s.ScaleIO.StorageMode, &s.ScaleIO.FSType)
	}
}

func persistentVolumeClaim(o *corev1.PersistentVolumeClaim) {
	set(&o.Status.Phase, corev1.ClaimPending)
	claimSpec(&o.Spec)
	resourceList(o.Status.Capacity)
	resourceList(o.Status.AllocatedResources)
}

func claimSpec(s *corev1.PersistentVolumeClaimSpec) {
	setPtr(&s.VolumeMode, corev1.PersistentVolumeFilesystem)
	resourceList(s.Resources.Limits)
	resourceList(s.Resources.Requests)
}
