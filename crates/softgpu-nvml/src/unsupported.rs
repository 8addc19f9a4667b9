//! What a soft GPU does not do, name by name, so that no program finds a name missing.
//!
//! The names are those that nvidia-ml-py 13.615 and nvml-wrapper 0.13 look up. With `SUBLET_SOFT_LOG` set, each is
//! reported once on the standard error of the program that called it.

use crate::abi::{NvmlError, run_call};
use crate::library::{DeviceHandle, gpu, library};
use std::ffi::c_uint;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// If set, calls that are not supported are reported.
const LOG_ENV: &str = "SUBLET_SOFT_LOG";

fn report_once(name: &str, reported: &AtomicBool) {
    if !reported.swap(true, Relaxed) && std::env::var_os(LOG_ENV).is_some() {
        eprintln!("soft nvml: `{name}` is not supported");
    }
}

/// Functions with a GPU as first argument, with its faults; the other arguments are not read.
macro_rules! gpu_functions {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: DeviceHandle) -> c_uint {
            static REPORTED: AtomicBool = AtomicBool::new(false);
            report_once(stringify!($name), &REPORTED);
            run_call(|| match gpu(device) {
                Ok(_) | Err(NvmlError::InvalidArgument) => Err(NvmlError::NotSupported),
                Err(code) => Err(code),
            })
        }
    )*};
}

/// Functions of which no argument is read, so that any number of them will do.
macro_rules! other_functions {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_uint {
            static REPORTED: AtomicBool = AtomicBool::new(false);
            report_once(stringify!($name), &REPORTED);
            run_call(|| library().and(Err(NvmlError::NotSupported)))
        }
    )*};
}

gpu_functions! {
    nvmlDeviceClearAccountingPids nvmlDeviceClearCpuAffinity nvmlDeviceClearEccErrorCounts
    nvmlDeviceClearFieldValues nvmlDeviceCreateGpuInstance nvmlDeviceCreateGpuInstanceWithPlacement
    nvmlDeviceDiscoverGpus nvmlDeviceFreezeNvLinkUtilizationCounter nvmlDeviceGetAPIRestriction
    nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAccountingPids nvmlDeviceGetAccountingStats
    nvmlDeviceGetAccountingStats_v2 nvmlDeviceGetActiveVgpus nvmlDeviceGetAdaptiveClockInfoStatus
    nvmlDeviceGetAdaptiveTgpModeInfo_v1 nvmlDeviceGetAddressingMode nvmlDeviceGetAttributes
    nvmlDeviceGetAttributes_v2 nvmlDeviceGetAutoBoostedClocksEnabled nvmlDeviceGetBBXTimeData_v1
    nvmlDeviceGetBankRemapperStatus_v1 nvmlDeviceGetBoardPartNumber nvmlDeviceGetBridgeChipInfo
    nvmlDeviceGetBusType nvmlDeviceGetC2cModeInfoV nvmlDeviceGetCapabilities nvmlDeviceGetClkMonStatus
    nvmlDeviceGetClockOffsets nvmlDeviceGetComputeInstanceId nvmlDeviceGetConfComputeGpuAttestationReport
    nvmlDeviceGetConfComputeGpuCertificate nvmlDeviceGetConfComputeMemSizeInfo
    nvmlDeviceGetConfComputeProtectedMemoryUsage nvmlDeviceGetCoolerInfo nvmlDeviceGetCpuAffinity
    nvmlDeviceGetCpuAffinityWithinScope nvmlDeviceGetCreatableVgpus nvmlDeviceGetCurrentClockFreqs
    nvmlDeviceGetDefaultEccMode nvmlDeviceGetDetailedEccErrors nvmlDeviceGetDeviceHandleFromMigDeviceHandle
    nvmlDeviceGetDramEncryptionMode nvmlDeviceGetDriverModel nvmlDeviceGetDriverModel_v2
    nvmlDeviceGetDynamicPstatesInfo nvmlDeviceGetEncoderCapacity nvmlDeviceGetEncoderSessions
    nvmlDeviceGetEncoderStats nvmlDeviceGetFBCSessions nvmlDeviceGetFBCStats nvmlDeviceGetFanControlPolicy_v2
    nvmlDeviceGetFanSpeed nvmlDeviceGetFanSpeedRPM nvmlDeviceGetFanSpeed_v2 nvmlDeviceGetFieldValues
    nvmlDeviceGetGpcClkMinMaxVfOffset nvmlDeviceGetGpcClkVfOffset nvmlDeviceGetGpuFabricInfo
    nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetGpuFabricInfo_v4 nvmlDeviceGetGpuInstanceById
    nvmlDeviceGetGpuInstanceId nvmlDeviceGetGpuInstancePossiblePlacements
    nvmlDeviceGetGpuInstancePossiblePlacements_v2 nvmlDeviceGetGpuInstanceProfileInfo
    nvmlDeviceGetGpuInstanceProfileInfoByIdV nvmlDeviceGetGpuInstanceProfileInfoV
    nvmlDeviceGetGpuInstanceRemainingCapacity nvmlDeviceGetGpuInstances nvmlDeviceGetGpuOperationMode
    nvmlDeviceGetGridLicensableFeatures nvmlDeviceGetGridLicensableFeatures_v2
    nvmlDeviceGetGridLicensableFeatures_v3 nvmlDeviceGetGridLicensableFeatures_v4 nvmlDeviceGetGspFirmwareMode
    nvmlDeviceGetGspFirmwareVersion nvmlDeviceGetHandleBySerial nvmlDeviceGetHostVgpuMode
    nvmlDeviceGetHostname_v1 nvmlDeviceGetInforomConfigurationChecksum nvmlDeviceGetInforomImageVersion
    nvmlDeviceGetInforomVersion nvmlDeviceGetIrqNum nvmlDeviceGetLastBBXFlushTime nvmlDeviceGetMarginTemperature
    nvmlDeviceGetMaxCustomerBoostClock nvmlDeviceGetMemClkMinMaxVfOffset nvmlDeviceGetMemClkVfOffset
    nvmlDeviceGetMemoryAffinity nvmlDeviceGetMemoryErrorCounter nvmlDeviceGetMemoryLimits_v1
    nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceGetMinMaxClockOfPState nvmlDeviceGetMinMaxFanSpeed
    nvmlDeviceGetModuleId nvmlDeviceGetNumaNodeId nvmlDeviceGetNvLinkCapability nvmlDeviceGetNvLinkErrorCounter
    nvmlDeviceGetNvLinkInfo nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetNvLinkRemotePciInfo
    nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkTelemetrySamples_v1
    nvmlDeviceGetNvLinkUtilizationControl nvmlDeviceGetNvLinkUtilizationCounter nvmlDeviceGetNvLinkVersion
    nvmlDeviceGetNvlinkBwMode nvmlDeviceGetNvlinkSupportedBwModes nvmlDeviceGetPciInfoExt
    nvmlDeviceGetPcieLinkMaxSpeed nvmlDeviceGetPcieSpeed nvmlDeviceGetPdi nvmlDeviceGetPerformanceModes
    nvmlDeviceGetPgpuMetadataString nvmlDeviceGetPlatformInfo nvmlDeviceGetPowerMizerMode_v1
    nvmlDeviceGetPowerSource nvmlDeviceGetProcessesUtilizationInfo nvmlDeviceGetRemappedRows
    nvmlDeviceGetRemappedRows_v2 nvmlDeviceGetRepairStatus nvmlDeviceGetRetiredPages
    nvmlDeviceGetRetiredPagesPendingStatus nvmlDeviceGetRetiredPages_v2 nvmlDeviceGetRowRemapperHistogram
    nvmlDeviceGetRunningProcessDetailList nvmlDeviceGetSamples nvmlDeviceGetSerial
    nvmlDeviceGetSramEccErrorStatus nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts
    nvmlDeviceGetSupportedClocksEventReasons nvmlDeviceGetSupportedClocksThrottleReasons
    nvmlDeviceGetSupportedEventTypes nvmlDeviceGetSupportedGraphicsClocks nvmlDeviceGetSupportedMemoryClocks
    nvmlDeviceGetSupportedPerformanceStates nvmlDeviceGetSupportedVgpus nvmlDeviceGetTargetFanSpeed
    nvmlDeviceGetThermalSettings nvmlDeviceGetTopologyNearestGpus
    nvmlDeviceGetTotalEccErrors nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetUnrepairableMemoryFlag_v1
    nvmlDeviceGetVgpuCapabilities nvmlDeviceGetVgpuHeterogeneousMode nvmlDeviceGetVgpuInstancesUtilizationInfo
    nvmlDeviceGetVgpuMetadata nvmlDeviceGetVgpuProcessUtilization nvmlDeviceGetVgpuProcessesUtilizationInfo
    nvmlDeviceGetVgpuSchedulerCapabilities nvmlDeviceGetVgpuSchedulerLog nvmlDeviceGetVgpuSchedulerLog_v2
    nvmlDeviceGetVgpuSchedulerState nvmlDeviceGetVgpuSchedulerState_v2 nvmlDeviceGetVgpuTypeCreatablePlacements
    nvmlDeviceGetVgpuTypeSupportedPlacements nvmlDeviceGetVgpuUtilization nvmlDeviceGetViolationStatus
    nvmlDeviceModifyDrainState nvmlDevicePerfMetricsGetSamples_v1 nvmlDevicePowerSmoothingActivatePresetProfile
    nvmlDevicePowerSmoothingSetState nvmlDevicePowerSmoothingUpdatePresetProfileParam nvmlDeviceQueryDrainState
    nvmlDeviceReadPRMCounters_v1 nvmlDeviceReadWritePRM_v1 nvmlDeviceRegisterEvents nvmlDeviceRemoveGpu
    nvmlDeviceRemoveGpu_v2 nvmlDeviceResetApplicationsClocks nvmlDeviceResetGpuLockedClocks
    nvmlDeviceResetMemoryLockedClocks nvmlDeviceResetNvLinkErrorCounters nvmlDeviceResetNvLinkUtilizationCounter
    nvmlDeviceSetAPIRestriction nvmlDeviceSetAdaptiveTgpMode_v1 nvmlDeviceSetApplicationsClocks
    nvmlDeviceSetAutoBoostedClocksEnabled nvmlDeviceSetClockOffsets nvmlDeviceSetConfComputeUnprotectedMemSize
    nvmlDeviceSetCpuAffinity nvmlDeviceSetDefaultAutoBoostedClocksEnabled nvmlDeviceSetDefaultFanSpeed_v2
    nvmlDeviceSetDramEncryptionMode nvmlDeviceSetDriverModel nvmlDeviceSetEccMode nvmlDeviceSetFanControlPolicy
    nvmlDeviceSetFanSpeed_v2 nvmlDeviceSetGpcClkVfOffset nvmlDeviceSetGpuLockedClocks
    nvmlDeviceSetGpuOperationMode nvmlDeviceSetHostname_v1 nvmlDeviceSetMemClkVfOffset
    nvmlDeviceSetMemoryLimits_v1 nvmlDeviceSetMemoryLockedClocks nvmlDeviceSetMigMode
    nvmlDeviceSetNvLinkDeviceLowPowerThreshold nvmlDeviceSetNvLinkUtilizationControl nvmlDeviceSetNvlinkBwMode
    nvmlDeviceSetNvlinkBwModeAsync_v1 nvmlDeviceSetPowerManagementLimit_v2 nvmlDeviceSetPowerMizerMode_v1
    nvmlDeviceSetRusdSettings_v1 nvmlDeviceSetTemperatureThreshold nvmlDeviceSetVgpuCapabilities
    nvmlDeviceSetVgpuHeterogeneousMode nvmlDeviceSetVgpuSchedulerState nvmlDeviceSetVgpuSchedulerState_v2
    nvmlDeviceSetVirtualizationMode nvmlDeviceValidateInforom nvmlDeviceVgpuForceGspUnload
    nvmlDeviceWorkloadPowerProfileClearRequestedProfiles nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
    nvmlDeviceWorkloadPowerProfileGetProfilesInfo nvmlDeviceWorkloadPowerProfileSetRequestedProfiles
    nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1
}

other_functions! {
    nvmlComputeInstanceDestroy nvmlComputeInstanceGetInfo nvmlComputeInstanceGetInfo_v2 nvmlEventSetCreate
    nvmlEventSetFree nvmlEventSetGetContextCount_v1 nvmlEventSetGetContextData_v1 nvmlEventSetGetContextInfo_v1
    nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1 nvmlEventSetRegisterGpuOperationalEvents_v1
    nvmlEventSetWait nvmlEventSetWait_v2 nvmlEventSetWait_v3 nvmlGetExcludedDeviceInfoByIndex
    nvmlGetVgpuCompatibility nvmlGetVgpuDriverCapabilities nvmlGetVgpuVersion nvmlGpmMetricsGet
    nvmlGpmMigSampleGet nvmlGpmQueryDeviceSupport nvmlGpmQueryIfStreamingEnabled nvmlGpmSampleAlloc
    nvmlGpmSampleFree nvmlGpmSampleGet nvmlGpmSetStreamingEnabled nvmlGpuInstanceCreateComputeInstance
    nvmlGpuInstanceCreateComputeInstanceWithPlacement nvmlGpuInstanceDestroy nvmlGpuInstanceGetActiveVgpus
    nvmlGpuInstanceGetComputeInstanceById nvmlGpuInstanceGetComputeInstancePossiblePlacements
    nvmlGpuInstanceGetComputeInstanceProfileInfo nvmlGpuInstanceGetComputeInstanceProfileInfoV
    nvmlGpuInstanceGetComputeInstanceRemainingCapacity nvmlGpuInstanceGetComputeInstances
    nvmlGpuInstanceGetCreatableVgpus nvmlGpuInstanceGetInfo nvmlGpuInstanceGetVgpuHeterogeneousMode
    nvmlGpuInstanceGetVgpuSchedulerLog nvmlGpuInstanceGetVgpuSchedulerLog_v2
    nvmlGpuInstanceGetVgpuSchedulerState nvmlGpuInstanceGetVgpuSchedulerState_v2
    nvmlGpuInstanceGetVgpuTypeCreatablePlacements nvmlGpuInstanceSetVgpuHeterogeneousMode
    nvmlGpuInstanceSetVgpuSchedulerState nvmlGpuInstanceSetVgpuSchedulerState_v2 nvmlSetVgpuVersion
    nvmlSystemEventSetCreate nvmlSystemEventSetFree nvmlSystemEventSetWait nvmlSystemGetCPER_v1
    nvmlSystemGetConfComputeCapabilities nvmlSystemGetConfComputeGpusReadyState
    nvmlSystemGetConfComputeKeyRotationThresholdInfo nvmlSystemGetConfComputeSettings
    nvmlSystemGetConfComputeState nvmlSystemGetDriverBranch nvmlSystemGetHicVersion nvmlSystemGetNvlinkBwMode
    nvmlSystemGetTopologyGpuSet nvmlSystemRegisterEvents nvmlSystemSetConfComputeGpusReadyState
    nvmlSystemSetConfComputeKeyRotationThresholdInfo nvmlSystemSetNvlinkBwMode nvmlUnitGetDevices
    nvmlUnitGetFanSpeedInfo nvmlUnitGetHandleByIndex nvmlUnitGetLedState nvmlUnitGetPsuInfo
    nvmlUnitGetTemperature nvmlUnitGetUnitInfo nvmlUnitSetLedState nvmlVgpuInstanceClearAccountingPids
    nvmlVgpuInstanceGetAccountingMode nvmlVgpuInstanceGetAccountingPids nvmlVgpuInstanceGetAccountingStats
    nvmlVgpuInstanceGetEccMode nvmlVgpuInstanceGetEncoderCapacity nvmlVgpuInstanceGetEncoderSessions
    nvmlVgpuInstanceGetEncoderStats nvmlVgpuInstanceGetFBCSessions nvmlVgpuInstanceGetFBCStats
    nvmlVgpuInstanceGetFbUsage nvmlVgpuInstanceGetFrameRateLimit nvmlVgpuInstanceGetGpuInstanceId
    nvmlVgpuInstanceGetGpuPciId nvmlVgpuInstanceGetLicenseInfo nvmlVgpuInstanceGetLicenseInfo_v2
    nvmlVgpuInstanceGetLicenseStatus nvmlVgpuInstanceGetMdevUUID nvmlVgpuInstanceGetMetadata
    nvmlVgpuInstanceGetPlacementId nvmlVgpuInstanceGetRuntimeStateSize nvmlVgpuInstanceGetType
    nvmlVgpuInstanceGetUUID nvmlVgpuInstanceGetVmDriverVersion nvmlVgpuInstanceGetVmID
    nvmlVgpuInstanceSetEncoderCapacity nvmlVgpuTypeGetBAR1Info nvmlVgpuTypeGetCapabilities nvmlVgpuTypeGetClass
    nvmlVgpuTypeGetDeviceID nvmlVgpuTypeGetFbReservation nvmlVgpuTypeGetFrameRateLimit
    nvmlVgpuTypeGetFramebufferSize nvmlVgpuTypeGetGpuInstanceProfileId nvmlVgpuTypeGetGspHeapSize
    nvmlVgpuTypeGetLicense nvmlVgpuTypeGetMaxInstances nvmlVgpuTypeGetMaxInstancesPerGpuInstance
    nvmlVgpuTypeGetMaxInstancesPerVm nvmlVgpuTypeGetName nvmlVgpuTypeGetNumDisplayHeads
    nvmlVgpuTypeGetResolution
}
